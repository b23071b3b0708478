"""Tokens per second and model FLOP utilisation of a training step on one GPU.

    python benchmarks/gpu_step.py

SmolLM2-135M and a Llama of about 1.2 B parameters with random weights, bfloat16 over float32 weights, packed rows of
unequal sequences. Utilisation is the model's own operations, 6 x parameters x tokens plus attention, by what a large
bfloat16 matrix product reaches on the same device. Exit status 1 without a GPU.
"""

from __future__ import annotations

import math
import random
import sys
import time

import torch
from transformers import LlamaConfig

from rstar_model.attention import _flash_varlen
from rstar_model.policy import Policy
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

SHAPES = {
    "135M": LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    ),
    "1.2B": LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    ),
}
SEQUENCES, LONGEST, STEPS = 32, 4096, 4


def main() -> int:
    """Measures each shape and prints one line for it."""
    if not torch.cuda.is_available():
        print("no GPU")
        return 1
    peak = _product_rate()
    attention = "flash-attention" if _flash_varlen() else "torch's scaled-dot-product attention"
    print(f"{torch.cuda.get_device_name()}: {peak / 1e12:.0f} TFLOP/s in a bfloat16 product; {attention}")
    for name, config in SHAPES.items():
        policy = Policy.from_config(config, autocast="bfloat16")
        policy.model.to("cuda")
        learner = TorchLearner(policy, OptimizerSettings())
        sequences = _sequences(config.vocab_size)
        learner.policy_update(sequences, 1e-6, 1.0, LossSettings(micro_batch_tokens=16_384))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            metrics = learner.policy_update(sequences, 1e-6, 1.0, LossSettings(micro_batch_tokens=16_384))
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / STEPS
        parameters = sum(p.numel() for p in policy.model.parameters())
        # Scores and mixing, forward and backward, half of them masked.
        squares = sum(len(s.token_ids) ** 2 for s in sequences)
        operations = 6 * parameters * metrics.tokens + 6 * config.num_hidden_layers * config.hidden_size * squares
        memory = torch.cuda.max_memory_allocated() / 1e9
        print(
            f"{name}: {metrics.tokens / seconds:.0f} tokens/s, MFU {operations / seconds / peak:.1%}, "
            f"{seconds:.2f} s a step of {metrics.tokens} tokens, {memory:.1f} GB"
        )
        del learner, policy
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return 0


def _product_rate() -> float:
    """Operations a second of a large bfloat16 matrix product."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    return 20 * 2 * size**3 / (time.perf_counter() - start)


def _sequences(vocabulary: int) -> list[WeightedSequence]:
    rng = random.Random(0)
    found = []
    for number in range(SEQUENCES):
        length = rng.randint(LONGEST // 8, LONGEST)
        ids = tuple(rng.randrange(vocabulary) for _ in range(length))
        mask = tuple(index >= 256 for index in range(length))
        found.append(WeightedSequence(ids, mask, (math.nan,) * length, number // 8, rng.choice((-1.0, 1.0))))
    return found


if __name__ == "__main__":
    sys.exit(main())
