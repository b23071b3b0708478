"""Log-probabilities of chosen tokens without a tensor of tokens x vocabulary.

The vocabulary projection, the softmax and their gradients run over chunks of positions; the backward pass computes
each chunk's logits again instead of keeping them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["chosen_log_probs"]


def chosen_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    compute_dtype: torch.dtype = torch.float32,
    with_entropy: bool = False,
    fast_products: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at the targets.

    Args:
        hidden: [N, hidden size], the states that predict the targets.
        weight: [vocabulary, hidden size].
        targets: int64 [N].
        bias: [vocabulary] or None.
        temperature: sampling temperature, > 0.
        chunk_tokens: positions whose logits exist at one time; memory is chunk x vocabulary.
        compute_dtype: of the projection's operands; the softmax is always float32 or wider.
        with_entropy: also the entropy of each distribution, in nats, without gradient.
        fast_products: permit bfloat16 operands inside float32 products, for a model that computes in bfloat16 anyway.

    Returns:
        Log-probabilities [N] in natural logarithm and the entropies [N] or None, float32 (float64 for float64).
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    result = _ChosenLogProbs.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        hidden, weight, bias, targets, temperature, chunk_tokens, compute_dtype, with_entropy, fast_products
    )
    log_probs, entropy = result
    return log_probs, entropy if with_entropy else None


class _ChosenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        chunk_tokens: int,
        compute_dtype: torch.dtype,
        with_entropy: bool,
        fast_products: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.float64 if compute_dtype == torch.float64 else torch.float32
        count = hidden.shape[0]
        log_probs = torch.empty(count, dtype=wide, device=hidden.device)
        entropy = torch.empty(count if with_entropy else 0, dtype=wide, device=hidden.device)
        log_norms = torch.empty_like(log_probs)
        with torch.autocast(hidden.device.type, enabled=False), _fast_products(hidden.device.type, fast_products):
            projection = weight.detach().to(compute_dtype)
            for start in range(0, count, chunk_tokens):
                part = slice(start, min(start + chunk_tokens, count))
                scaled = _logits(hidden[part], projection, bias, temperature, wide)
                norm = torch.logsumexp(scaled, dim=-1)
                log_probs[part] = scaled.gather(1, targets[part, None]).squeeze(1) - norm
                log_norms[part] = norm
                if with_entropy:
                    entropy[part] = norm - ((scaled - norm[:, None]).exp_() * scaled).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_norms)
        ctx.settings = (temperature, chunk_tokens, compute_dtype, wide, fast_products)
        ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, targets, log_norms = ctx.saved_tensors
        temperature, chunk_tokens, compute_dtype, wide, fast_products = ctx.settings
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        count = hidden.shape[0]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if need_bias else None
        with torch.autocast(hidden.device.type, enabled=False), _fast_products(hidden.device.type, fast_products):
            projection = weight.detach().to(compute_dtype)
            for start in range(0, count, chunk_tokens):
                part = slice(start, min(start + chunk_tokens, count))
                scaled = _logits(hidden[part], projection, bias, temperature, wide)
                # d log p(target) / d logits = (onehot - softmax) / temperature
                grad_logits = scaled.sub_(log_norms[part, None]).exp_()
                scale = grad[part].to(wide) / temperature
                grad_logits.mul_(-scale[:, None])
                grad_logits.scatter_add_(1, targets[part, None], scale[:, None])
                low = grad_logits.to(compute_dtype)
                if grad_hidden is not None:
                    grad_hidden[part] = (low @ projection).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight += low.T @ hidden[part].to(compute_dtype)
                if grad_bias is not None:
                    grad_bias += grad_logits.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
            None,
            None,
        )


@contextlib.contextmanager
def _fast_products(device: str, wanted: bool) -> Iterator[None]:
    """Let float32 products on the CPU go through oneDNN, which is twice as fast as the default on some processors.

    The setting permits bfloat16 operands inside a product; results and sums stay float32, so logits keep the small
    differences that rounding the results would lose.
    """
    settings: Any = getattr(getattr(torch.backends, "mkldnn", None), "matmul", None)
    if not wanted or device != "cpu" or not hasattr(settings, "fp32_precision"):
        yield
        return
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _logits(
    hidden: torch.Tensor,
    projection: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
    wide: torch.dtype,
) -> torch.Tensor:
    logits = (hidden.to(projection.dtype) @ projection.T).to(wide)
    if bias is not None:
        logits += bias.detach().to(wide)
    return logits.div_(temperature) if temperature != 1.0 else logits
