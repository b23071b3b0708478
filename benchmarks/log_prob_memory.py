"""Peak memory of the log-probability pass, forward and backward, by tokens, vocabulary and chunk.

    python benchmarks/log_prob_memory.py

A model of two small layers is given packed rows of 1024-token sequences in which every token carries loss. Each row
of the table is a process of its own; the peak is what the process needed beyond the loaded model. Beside it stands
what one float32 tensor of tokens x vocabulary would take.

The peak grows with the tokens for the hidden states and activations that the backward pass needs, whatever the
vocabulary. Exit status 1: it grows more with the larger vocabulary than with the smaller one, by more than 5 % of what
whole tensors would; or a chunk four times as large does not show in the peak. Linux; needs about 5 GB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TOKENS = (1024, 2048, 4096, 8192, 16384, 32768)
VOCABULARIES = (49_152, 151_936)
CHUNKS = (256, 1024, 4096)
CHUNK, SEQUENCE, MOST_SHARE = 1024, 1024, 0.05
MEGABYTE = 1 << 20


def measure(tokens: int, vocabulary: int, chunk: int) -> dict[str, float]:
    """Peak in MB beyond the loaded model, and seconds, of one pass in this process."""
    import time

    import torch
    from transformers import LlamaConfig

    from rstar_model.packing import pack
    from rstar_model.policy import Policy

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=SEQUENCE,
    )
    policy = Policy.from_config(config, autocast="bfloat16")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(vocabulary, (tokens // SEQUENCE, SEQUENCE), generator=generator).tolist()
    batch = pack([(row, [False] + [True] * (SEQUENCE - 1)) for row in rows])
    # Gradients are there at any length; they belong to the model.
    for parameter in policy.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, start = _status("VmRSS"), time.perf_counter()
    found = policy.forward_log_probs(batch, chunk_tokens=chunk, with_entropy=True)
    (-found.log_probs.sum() / tokens).backward()
    return {"peak_mb": _status("VmHWM") - before, "seconds": time.perf_counter() - start}


def _status(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / MEGABYTE


def main() -> int:
    """Measures everything and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most-tokens", type=int, default=TOKENS[-1], help="leave longer rows out")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*map(int, options.one.split(",")))))
        return 0
    lengths = [tokens for tokens in TOKENS if tokens <= options.most_tokens]
    figures: list[dict[str, Any]] = []
    misses: list[str] = []
    print(f"{'vocabulary':>10} {'tokens':>7} {'chunk':>6} {'peak MB':>9} {'tokens x vocabulary MB':>23} {'seconds':>8}")
    growths, naives = [], []
    for vocabulary in VOCABULARIES:
        rows = [_row(tokens, vocabulary, CHUNK, figures) for tokens in lengths]
        growths.append(rows[-1]["peak_mb"] - rows[0]["peak_mb"])
        naives.append(rows[-1]["naive_mb"] - rows[0]["naive_mb"])
    more, naive_more = growths[1] - growths[0], naives[1] - naives[0]
    print(
        f"with the larger vocabulary the peak grows by {more:.0f} MB more, a whole tensor by {naive_more:.0f} MB more"
    )
    if more > MOST_SHARE * naive_more:
        misses.append(f"{more:.0f} MB of the peak's growth are the vocabulary's")
    middle = min(8192, lengths[-1])
    by_chunk = [_row(middle, VOCABULARIES[0], chunk, figures) for chunk in CHUNKS if chunk <= middle]
    for small, large in itertools.pairwise(by_chunk):
        if large["peak_mb"] <= small["peak_mb"]:
            misses.append(f"a chunk of {large['chunk']} needs no more than one of {small['chunk']}")
    for miss in misses:
        print(f"miss: {miss}")
    if options.out:
        options.out.write_text(json.dumps({"rows": figures, "misses": misses}, indent=1) + "\n")
    return 1 if misses else 0


def _row(tokens: int, vocabulary: int, chunk: int, figures: list[dict[str, Any]]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", f"{tokens},{vocabulary},{chunk}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = {"tokens": tokens, "vocabulary": vocabulary, "chunk": chunk, "naive_mb": tokens * vocabulary * 4 / MEGABYTE}
    row.update(json.loads(output.splitlines()[-1]))
    figures.append(row)
    sizes = f"{vocabulary:>10} {tokens:>7} {chunk:>6} {row['peak_mb']:>9.0f} {row['naive_mb']:>23.0f}"
    print(f"{sizes} {row['seconds']:>8.1f}", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
