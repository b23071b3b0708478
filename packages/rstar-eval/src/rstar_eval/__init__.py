"""Benchmarks, statistics and reports of agentic reasoners"""
