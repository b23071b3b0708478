"""Digests find any changed element, and come out the same however a parameter is cut into pieces."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - not without torch
from hypothesis import strategies as st  # noqa: E402 - as above

from rstar_model.digests import (  # noqa: E402 - as above
    DigestPiece,
    differing_parameters,
    join_pieces,
    parameter_digest,
    slice_digest,
)

MODULUS = 2**64
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _piece(tensor: torch.Tensor, rows: slice, columns: slice, name: str = "w") -> DigestPiece:
    block = tensor[rows, columns]
    offsets = (rows.indices(tensor.shape[0])[0], columns.indices(tensor.shape[1])[0])
    return DigestPiece(name, "float32", offsets, tuple(block.shape), slice_digest(block, offsets))


@settings(deadline=None, max_examples=25)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_one_flipped_bit_always_changes_the_digest(data: st.DataObject, dtype: torch.dtype) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tensor = _random(*shape, dtype=dtype).abs() + 1  # normal numbers: what a kernel flushes counts as 0
    width = tensor.element_size() * 8
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    before = slice_digest(tensor)
    bits = tensor.view(integer).view(-1)
    at, bit = data.draw(st.integers(0, tensor.numel() - 1)), data.draw(st.integers(0, width - 3))
    bits[at] ^= 1 << bit
    assert slice_digest(tensor) != before


@settings(deadline=None, max_examples=25)
@given(row=st.integers(0, 7), column=st.integers(0, 5), dtype=st.sampled_from(DTYPES))
def test_blocks_add_up_to_the_whole(row: int, column: int, dtype: torch.dtype) -> None:
    tensor = _random(7, 5, dtype=dtype)
    parts = [
        slice_digest(tensor[rows, columns], (rows.start, columns.start))
        for rows in (slice(0, row), slice(row, 7))
        for columns in (slice(0, column), slice(column, 5))
    ]
    assert sum(parts) % MODULUS == slice_digest(tensor)


def test_long_rows_and_many_rows_are_cut_without_a_seam() -> None:
    for shape in ((3, 70_001), (700, 500), (150_007,)):
        tensor = _random(*shape)
        half = shape[0] // 2
        tail = (half,) + (0,) * (len(shape) - 1)
        parts = slice_digest(tensor[:half]) + slice_digest(tensor[half:], tail)
        assert parts % MODULUS == slice_digest(tensor)


def test_exchanged_elements_change_the_digest() -> None:
    tensor = _random(64, 48)
    before = slice_digest(tensor)
    for a, b in (((0, 0), (0, 1)), ((0, 0), (1, 0)), ((5, 7), (7, 5))):
        changed = tensor.clone()
        changed[a], changed[b] = tensor[b], tensor[a]
        assert slice_digest(changed) != before
    assert slice_digest(tensor.flip(0)) != before
    assert slice_digest(tensor.t()) != before


def test_memory_layout_does_not_matter() -> None:
    tensor = _random(9, 4)
    assert slice_digest(tensor.t().contiguous().t()) == slice_digest(tensor)


def test_zeros_of_either_sign_and_subnormal_numbers_are_alike() -> None:
    values = torch.tensor([0.0, 1.0, 0.0, 0.0])
    flushed = torch.tensor([-0.0, 1.0, 1e-42, -1e-42])
    assert slice_digest(values) == slice_digest(flushed)


def test_text_tells_dtype_and_shape_apart() -> None:
    zeros = torch.zeros(2, 3)
    assert len({parameter_digest(zeros), parameter_digest(zeros.view(3, 2)), parameter_digest(zeros.bfloat16())}) == 3


def test_an_integer_tensor_has_no_digest() -> None:
    with pytest.raises(ValueError, match="no digest for dtype"):
        slice_digest(torch.arange(3))


def test_pieces_of_several_workers_make_the_whole_parameter() -> None:
    tensor = _random(8, 6)
    halves = [_piece(tensor, slice(0, 4), slice(0, 6)), _piece(tensor, slice(4, 8), slice(0, 6))]
    replicas = [*halves, halves[0]]
    assert join_pieces(replicas) == {"w": parameter_digest(tensor)}


def test_a_missing_piece_equals_no_digest() -> None:
    tensor = _random(8, 6)
    found = join_pieces([_piece(tensor, slice(4, 8), slice(0, 6))])
    assert differing_parameters({"w": parameter_digest(tensor)}, found)[0].startswith("w is incomplete (24 of 48")


def test_replicas_that_differ_equal_no_digest() -> None:
    tensor = _random(8, 6)
    other = DigestPiece("w", "float32", (0, 0), (8, 6), 1)
    found = join_pieces([_piece(tensor, slice(0, 8), slice(0, 6)), other])
    assert "different in replicas" in found["w"]


def test_differences_are_named() -> None:
    lines = differing_parameters({"a": "x", "b": "x", "c": "x"}, {"a": "x", "b": "y", "d": "x"})
    assert lines == ["b is y, sent was x", "c is not loaded", "d was not sent"]


def test_known_value() -> None:
    """Learner and engine may run different versions of this package: the formula must not drift."""
    tensor = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert parameter_digest(tensor) == "float32 [3, 4] 48c3e81b8cdacf60"
