"""Frames between service and slots."""

from __future__ import annotations

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import FRAME_HEADER, Job, Outcome, pack, receive, send, unpack

_LIMITS = st.builds(Limits, wall_seconds=st.floats(0, 1e6), memory_bytes=st.integers(0, 2**63 - 1))
_FILES = st.dictionaries(st.text(), st.binary(), max_size=3)
_JOBS = st.builds(
    Job,
    code=st.text(),
    stdin=st.binary(),
    limits=_LIMITS,
    files=_FILES,
    collect=st.lists(st.text(), max_size=3).map(tuple),
    seed=st.none() | st.integers(),
)
_OUTCOMES = st.builds(
    Outcome,
    status=st.sampled_from(["ok", "error"]),
    stdout=st.binary(),
    value=st.none() | st.text(),
    exit_code=st.none() | st.integers(0, 255),
    files=_FILES,
)


@given(_JOBS)
def test_a_job_survives_its_frame(job: Job) -> None:
    assert Job.from_frame(unpack(pack(job.frame())[FRAME_HEADER.size :])) == job


@given(_OUTCOMES)
def test_an_outcome_survives_its_frame(outcome: Outcome) -> None:
    assert Outcome.from_frame(unpack(pack(outcome.frame())[FRAME_HEADER.size :])) == outcome


def test_frames_of_any_size_arrive_in_order() -> None:
    ours, theirs = socket.socketpair()
    frames = [{"kind": "x", "content": b"y" * size} for size in (0, 1, 5_000_000, 3)]
    sender = threading.Thread(target=lambda: [send(ours, frame) for frame in frames])
    sender.start()
    assert [receive(theirs) for _ in frames] == frames
    sender.join()
    ours.close()
    assert receive(theirs) is None
    theirs.close()


def test_a_frame_that_breaks_off_is_none() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(pack({"kind": "x", "content": b"y" * 100})[:50])
    ours.close()
    assert receive(theirs) is None
    theirs.close()
