from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rstar_model import attention  # noqa: E402
from rstar_model.packing import pack  # noqa: E402


def by_hand(query, key, value, mask, scaling):
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1) for tensor in (key, value))
    scores = (query @ key.transpose(-1, -2)) * scaling
    return (scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value).transpose(1, 2)


def row_mask(batch):
    """[T, T]: which keys each query of the row may see, straight from the definition of a segment."""
    mask = torch.zeros(len(batch), len(batch), dtype=torch.bool)
    for start, end, prefix_start, prefix_end in batch.segments:
        mask[start:end, prefix_start:prefix_end] = True
        mask[start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
    return mask


def example(share: bool):
    prompt = [1, 2, 3, 4, 5]
    items = [(prompt + [7] * n, [False] * 5 + [True] * n) for n in (1, 3, 6)] + [([8, 9], [False, True])]
    batch = pack(items, share_prefix=share)
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(1, heads, len(batch), 8, dtype=torch.float64, generator=generator).requires_grad_()
        for heads in (4, 2, 2)
    ]
    return batch, tensors


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_values_and_gradients_are_those_of_the_masked_row(monkeypatch, share: bool, fused: bool) -> None:
    if fused:
        monkeypatch.setattr(attention, "_SHORT_SEGMENT", 0)
    batch, tensors = example(share)
    output, _ = attention.packed_attention(torch.nn.Module(), *tensors, None, scaling=0.3, rstar_batch=batch)
    expected = by_hand(*tensors, row_mask(batch), 0.3)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for got, want in zip(
        torch.autograd.grad((output * weights).sum(), tensors),
        torch.autograd.grad((expected * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_an_ordinary_batch_is_causal() -> None:
    _, tensors = example(False)
    output, _ = attention.packed_attention(torch.nn.Module(), *tensors, None)
    length = tensors[0].shape[2]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    torch.testing.assert_close(output, by_hand(*tensors, mask, 8**-0.5), rtol=1e-11, atol=1e-12)


def test_a_padding_mask_is_refused() -> None:
    batch, tensors = example(False)
    with pytest.raises(ValueError, match="packed"):
        attention.packed_attention(torch.nn.Module(), *tensors, torch.ones(1, 1), rstar_batch=batch)


def test_a_sequence_beyond_the_sliding_window_is_refused() -> None:
    batch, tensors = example(False)
    with pytest.raises(ValueError, match="sliding window"):
        attention.packed_attention(torch.nn.Module(), *tensors, None, sliding_window=4, rstar_batch=batch)
