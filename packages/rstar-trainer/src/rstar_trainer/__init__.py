"""Trains agentic reasoners: SFT, GRPO-RoC, stages, checkpoints"""
