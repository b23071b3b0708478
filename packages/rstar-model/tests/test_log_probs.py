from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rstar_model.log_probs import chosen_log_probs  # noqa: E402

N, H, V = 7, 5, 31


def example(dtype=torch.float64, bias: bool = False):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(V, H, dtype=dtype, generator=generator).requires_grad_()
    offset = torch.randn(V, dtype=dtype, generator=generator).requires_grad_() if bias else None
    targets = torch.randint(V, (N,), generator=generator)
    return hidden, weight, offset, targets


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bias", [False, True])
def test_values_entropies_and_gradients_are_exact_for_every_chunk(chunk: int, temperature: float, bias: bool) -> None:
    hidden, weight, offset, targets = example(bias=bias)
    values, entropy = chosen_log_probs(
        hidden,
        weight,
        targets,
        bias=offset,
        temperature=temperature,
        chunk_tokens=chunk,
        compute_dtype=torch.float64,
        with_entropy=True,
    )
    logits = hidden @ weight.T + (0 if offset is None else offset)
    distribution = torch.log_softmax(logits / temperature, dim=-1)
    expected = distribution.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(values, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(entropy, -(distribution.exp() * distribution).sum(-1), rtol=1e-12, atol=1e-12)
    scale = torch.arange(1.0, N + 1, dtype=torch.float64)
    inputs = [tensor for tensor in (hidden, weight, offset) if tensor is not None]
    for got, want in zip(
        torch.autograd.grad((values * scale).sum(), inputs),
        torch.autograd.grad((expected * scale).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_the_entropy_carries_no_gradient() -> None:
    hidden, weight, _, targets = example()
    _, entropy = chosen_log_probs(hidden, weight, targets, with_entropy=True)
    assert not entropy.requires_grad


def test_half_precision_states_give_float32_results() -> None:
    hidden, weight, _, targets = example(torch.bfloat16)
    values, _ = chosen_log_probs(hidden, weight, targets)
    expected = torch.log_softmax(hidden.float() @ weight.float().T, -1).gather(1, targets[:, None]).squeeze(1)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


def test_no_positions_is_fine() -> None:
    hidden, weight, _, targets = example()
    values, _ = chosen_log_probs(hidden[:0], weight, targets[:0])
    values.sum().backward()
    assert values.shape == (0,)
    assert not weight.grad.any()


def test_memory_grows_with_the_chunk_not_with_the_tokens() -> None:
    """The largest tensor that the forward and backward pass make is chunk x vocabulary or a weight."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return result

    tokens, vocabulary, chunk = 500, 400, 10
    hidden = torch.randn(tokens, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    with Largest() as largest:
        values, _ = chosen_log_probs(hidden, weight, torch.zeros(tokens, dtype=torch.int64), chunk_tokens=chunk)
        values.sum().backward()
    assert largest.elements <= chunk * vocabulary


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"chunk_tokens": 0}])
def test_settings_without_meaning_are_refused(wrong) -> None:
    hidden, weight, _, targets = example()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        chosen_log_probs(hidden, weight, targets, **wrong)
