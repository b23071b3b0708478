"""Runs untrusted Python programs fast, behind gRPC"""
