"""Drawing one token per row from logits, with its log-probability.

Inverse-CDF sampling: one uniform number per row picks the token. The cumulative sum goes over blocks of the
vocabulary first and then inside the block, in float64, so its rounding does not distort the distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["SamplingRows", "sample"]

_BLOCK = 256
_GREEDY = 1.0  # temperature at which log-probabilities of greedy tokens are reported


@dataclass(frozen=True)
class SamplingRows:
    """Sampling settings and noise of the rows of one step, all of length n."""

    temperature: list[float]
    top_p: list[float]
    top_k: list[int]
    uniform: list[float]


def sample(logits: torch.Tensor, rows: SamplingRows) -> tuple[list[int], list[float]]:
    """Draw a token per row.

    Args:
        logits: [n, vocabulary], any float type; not changed.
        rows: settings of each row; temperature 0 takes the most probable token.

    Returns:
        Token ids and their natural log-probabilities under the distribution sampled from.
    """
    scaled = logits.float()
    if any(value not in (0.0, 1.0) for value in rows.temperature):
        divisors = [value if value > 0 else _GREEDY for value in rows.temperature]
        scaled = scaled / torch.tensor(divisors, device=logits.device).unsqueeze(1)
    scaled = _restrict(scaled, rows)
    # exp of the largest is 1, so nothing overflows and the total is at least 1.
    weights = torch.exp(scaled - scaled.amax(dim=1, keepdim=True))
    vocabulary = weights.shape[1]
    if vocabulary % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, _BLOCK - vocabulary % _BLOCK))
    blocks = weights.view(weights.shape[0], -1, _BLOCK)
    block_sums = blocks.sum(dim=2).double()
    edges = block_sums.cumsum(dim=1)
    total = edges[:, -1:]
    target = torch.tensor(rows.uniform, dtype=torch.float64, device=logits.device).unsqueeze(1) * total
    block = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[1] - 1)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, 1, _BLOCK)).squeeze(1).double()
    before = (edges - block_sums).gather(1, block)
    offset = torch.searchsorted(before + inside.cumsum(dim=1), target, right=True).squeeze(1)
    # Rounding between the two sums may point past the block: its last token with any weight is meant.
    last = _BLOCK - 1 - (inside.flip(1) > 0).float().argmax(dim=1)
    ids = block.squeeze(1) * _BLOCK + torch.minimum(offset, last)
    greedy = [index for index, value in enumerate(rows.temperature) if value == 0.0]
    if greedy:
        ids[greedy] = scaled[greedy].argmax(dim=1)
    chosen = weights.gather(1, ids.unsqueeze(1)).double()
    log_probs = (chosen.log() - total.log()).squeeze(1)
    return ids.tolist(), log_probs.float().tolist()


def _restrict(scaled: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Set logits outside top-k and top-p to -inf; a row without either, or a greedy one, is left as it is."""
    settings = list(zip(rows.temperature, rows.top_p, rows.top_k, strict=True))
    restricted = [i for i, (t, p, k) in enumerate(settings) if t != 0.0 and (k > 0 or p < 1.0)]
    if restricted:
        scaled = scaled.clone()
    for index in restricted:
        _, top_p, top_k = settings[index]
        values, order = scaled[index].sort(descending=True, stable=True)
        keep = torch.ones_like(values, dtype=torch.bool)
        if top_k > 0:
            keep[top_k:] = False
        if top_p < 1.0:
            probabilities = values.masked_fill(~keep, float("-inf")).softmax(0)
            # A token stays while the mass before it is below top_p, so at least one always stays.
            keep &= (probabilities.cumsum(0) - probabilities) < top_p
            keep[0] = True
        scaled[index, order[~keep]] = float("-inf")
    return scaled
