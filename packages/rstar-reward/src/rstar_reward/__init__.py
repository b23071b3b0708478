"""Judges the declared answer of a rollout, behind gRPC"""
