"""Draining pipes."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.capture import Capture


@given(st.lists(st.binary(max_size=100), max_size=20), st.integers(0, 500))
def test_the_kept_part_is_an_exact_prefix_and_the_size_is_true(chunks: list[bytes], keep: int) -> None:
    capture = Capture(keep)
    for chunk in chunks:
        os.write(capture.write_end, chunk)
        capture.drain()
    capture.close_write_end()
    capture.drain_rest(10_000)
    everything = b"".join(chunks)
    assert (capture.content, capture.total_bytes) == (everything[:keep], len(everything))
    assert not capture.open
    capture.close()


def test_an_empty_pipe_is_not_at_its_end() -> None:
    capture = Capture(10)
    assert not capture.drain()
    assert capture.open
    capture.close()
