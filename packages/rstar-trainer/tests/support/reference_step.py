"""An independent reference: a Llama and a training step in plain PyTorch, one unpacked sequence at a time.

Nothing of rstar or transformers computes here; only weights (by name) and sequences come in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """Ids, loss mask, engine log-probabilities, group and advantage of one sequence."""

    ids: Sequence[int]
    mask: Sequence[bool]
    engine: Sequence[float]
    group: int
    advantage: float


@dataclass(frozen=True)
class Objective:
    """What is optimised, by the names of the recipe."""

    aggregation: str = "group_token_mean"
    clip_low: float = 0.2
    clip_high: float = 0.28
    constant: int = 1
    cap: float | None = None
    temperature: float = 1.0
    updates: int = 1


@dataclass
class Outcome:
    """Gradient before clipping and loss of each update, tokens outside of the clip range, parameters at the end."""

    gradients: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    clipped: int = 0
    parameters: dict[str, Tensor] = field(default_factory=dict)


class PlainLlama:
    """Forward pass of a Llama with tied embeddings over one sequence."""

    def __init__(self, config: Any, parameters: Mapping[str, Tensor]) -> None:
        self.config = config
        self.parameters = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}

    def log_probs(self, ids: Sequence[int], temperature: float) -> Tensor:
        """log p of each token after the first, [L - 1]."""
        p, config = self.parameters, self.config
        tokens = torch.tensor(ids)
        x = p["model.embed_tokens.weight"][tokens]
        for layer in range(config.num_hidden_layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(self._norm(x, f"{name}.input_layernorm"), f"{name}.self_attn")
            h = self._norm(x, f"{name}.post_attention_layernorm")
            gate, up = h @ p[f"{name}.mlp.gate_proj.weight"].T, h @ p[f"{name}.mlp.up_proj.weight"].T
            x = x + (gate * torch.sigmoid(gate) * up) @ p[f"{name}.mlp.down_proj.weight"].T
        logits = self._norm(x, "model.norm") @ p["model.embed_tokens.weight"].T / temperature
        logits = logits[:-1]
        shifted = logits - logits.max(-1, keepdim=True).values
        return shifted[torch.arange(len(ids) - 1), tokens[1:]] - shifted.exp().sum(-1).log()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return (
            x / (x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * self.parameters[f"{name}.weight"]
        )

    def _attention(self, x: Tensor, name: str) -> Tensor:
        config, length = self.config, len(x)
        size = config.hidden_size // config.num_attention_heads

        def heads(kind: str, count: int) -> Tensor:
            return (x @ self.parameters[f"{name}.{kind}_proj.weight"].T).view(length, count, size).transpose(0, 1)

        q = self._rotated(heads("q", config.num_attention_heads))
        k, v = self._rotated(heads("k", config.num_key_value_heads)), heads("v", config.num_key_value_heads)
        repeat = config.num_attention_heads // config.num_key_value_heads
        k, v = k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        mixed = torch.softmax(scores, -1) @ v
        return mixed.transpose(0, 1).reshape(length, -1) @ self.parameters[f"{name}.o_proj.weight"].T

    def _rotated(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        # Angles are float32 in every implementation of this model.
        frequency = 1.0 / self.config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        angle = torch.arange(x.shape[1]).float()[:, None] * frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[..., : size // 2], x[..., size // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def reference_step(
    model: PlainLlama, examples: Sequence[Example], objective: Objective, *, rate: float, max_norm: float
) -> Outcome:
    """One rollout step: its updates with AdamW (no weight decay), each on some of the groups."""
    outcome = Outcome()
    groups = list(dict.fromkeys(example.group for example in examples))
    old = [_chosen(model, example, objective).detach() for example in examples]
    first = {name: torch.zeros_like(value) for name, value in model.parameters.items()}
    second = {name: torch.zeros_like(value) for name, value in model.parameters.items()}
    for update in range(objective.updates):
        part = [i for i, example in enumerate(examples) if groups.index(example.group) % objective.updates == update]
        loss, clipped = _loss(model, [examples[i] for i in part], [old[i] for i in part], objective)
        outcome.losses.append(float(loss.detach()))
        outcome.clipped += clipped
        gradients = dict(zip(model.parameters, torch.autograd.grad(loss, list(model.parameters.values())), strict=True))
        outcome.gradients.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
        scale = min(1.0, max_norm / (float(outcome.gradients[-1].norm()) + 1e-6))
        with torch.no_grad():
            for name, value in model.parameters.items():
                gradient = gradients[name] * scale
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                mean = first[name] / (1 - 0.9 ** (update + 1))
                square = second[name] / (1 - 0.999 ** (update + 1))
                value -= rate * mean / (square.sqrt() + 1e-8)
    outcome.parameters = {name: value.detach() for name, value in model.parameters.items()}
    return outcome


def _chosen(model: PlainLlama, example: Example, objective: Objective) -> Tensor:
    return model.log_probs(example.ids, objective.temperature)[torch.tensor(example.mask[1:])]


def _loss(
    model: PlainLlama, examples: Sequence[Example], old: Sequence[Tensor], objective: Objective
) -> tuple[Tensor, int]:
    totals: dict[int, int] = {}
    for example in examples:
        totals[example.group] = totals.get(example.group, 0) + sum(example.mask)
    loss, clipped = torch.zeros((), dtype=old[0].dtype), 0
    for example, before in zip(examples, old, strict=True):
        ratio = (_chosen(model, example, objective) - before).exp()
        low, high = 1 - objective.clip_low, 1 + objective.clip_high
        terms = torch.minimum(ratio * example.advantage, ratio.clamp(low, high) * example.advantage)
        clipped += int(((ratio < low) | (ratio > high)).sum())
        if objective.cap is not None:
            recorded = torch.tensor([e for e, m in zip(example.engine, example.mask, strict=True) if m])
            terms = terms * (before - recorded.to(before.dtype)).exp().clamp(max=objective.cap)
        own = sum(example.mask)
        divisor = {
            "group_token_mean": len(totals) * totals[example.group],
            "batch_token_mean": sum(totals.values()),
            "sequence_mean": len(examples) * own,
            "dr_grpo": len(examples) * objective.constant,
        }[objective.aggregation]
        loss = loss - terms.sum() / divisor
    return loss, clipped
