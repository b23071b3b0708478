"""Which samples are asked for again after a loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rstar_rollout.limits import ProblemRequest
from rstar_trainer.rollouts import _samples, _still_missing


def _problem(group: str, samples: int, first: int = 0) -> ProblemRequest:
    return ProblemRequest(
        problem_id=f"p-{group}", group_id=group, prompt="?", samples=samples, first_sample_index=first
    )


@given(st.integers(0, 12), st.integers(0, 5), st.data())
def test_exactly_the_missing_samples_are_asked_for_in_runs(samples: int, first: int, data: st.DataObject) -> None:
    problems = [_problem("a", samples, first), _problem("b", 3)]
    everything = list(_samples(problems))
    missing = dict.fromkeys(sample for sample in everything if data.draw(st.booleans()))
    requests = _still_missing(problems, missing)
    assert list(_samples(requests)) == list(missing)
    assert all(request.samples > 0 and request.prompt == "?" for request in requests)
    assert {request.problem_id for request in requests} <= {"p-a", "p-b"}


def test_neighbouring_samples_share_a_request() -> None:
    requests = _still_missing([_problem("a", 6)], {("a", i): None for i in (0, 1, 3, 4, 5)})
    assert [(request.first_sample_index, request.samples) for request in requests] == [(0, 2), (3, 3)]
