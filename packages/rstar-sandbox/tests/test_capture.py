"""Draining pipes."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.capture import Capture


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 500))
def test_the_kept_part_is_an_exact_prefix_and_the_size_is_true(chunks: list[bytes], keep: int) -> None:
    read_end, write_end = _pipe()
    capture = Capture(keep, read_end)
    for chunk in chunks:
        os.write(write_end, chunk)
        capture.drain()
    os.close(write_end)
    capture.drain_rest(10_000)
    everything = b"".join(chunks)
    assert (capture.content, capture.total_bytes) == (everything[:keep], len(everything))
    assert not capture.open
    capture.close()


def test_an_empty_pipe_is_not_at_its_end() -> None:
    read_end, write_end = _pipe()
    capture = Capture(10, read_end)
    assert not capture.drain()
    assert capture.open
    capture.close()
    os.close(write_end)


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    return read_end, write_end
