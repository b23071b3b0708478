"""The evaluation loop against sources that lose, repeat and reorder: every sample counts exactly once."""

import asyncio
import importlib

import pytest

from rstar_eval.evaluate import evaluate
from rstar_eval.problems import EvalProblem
from rstar_eval.sample_log import read_samples
from rstar_eval.scoring import Verdict
from rstar_eval.settings import EvalSettings
from rstar_model.types import EndReason
from rstar_protos.errors import InfrastructureError, ServiceUnavailableError, UserInputError
from rstar_rollout.engines.base import EngineNotReadyError

PROBLEMS = [EvalProblem("a", "1+1?", "2"), EvalProblem("b", "1+2?", "3"), EvalProblem("c", "2+2?", "4")]


UNAVAILABLE = ServiceUnavailableError("as the test wants it")


class Source:
    """A rollout client in one process: yields one trajectory per requested sample, after `edit` has changed them."""

    def __init__(self, make_trajectory, edit=lambda call, trajectories: trajectories):
        self._make = make_trajectory
        self._edit = edit
        self.calls = []

    async def generate_groups(self, problems, sampling, limits, tools, expected_weight_version=0):
        self.calls.append([(p.problem_id, p.first_sample_index, p.samples) for p in problems])
        keys = [(p.problem_id, p.first_sample_index + i) for p in problems for i in range(p.samples)]
        for item in self._edit(len(self.calls), [self._make(*key) for key in keys]):
            await asyncio.sleep(0)
            if isinstance(item, BaseException):
                raise item
            yield item


class Scorer:
    """Pays every sample of problem "a"; `fail` says which problem's scoring fails."""

    def __init__(self, fail=None, error=None):
        self._fail = fail
        self._error = error
        self.request_ids = []

    async def score(self, problem, trajectory, *, request_id):
        self.request_ids.append(request_id)
        await asyncio.sleep(0)
        if trajectory.end_reason is EndReason.INFRASTRUCTURE:
            return Verdict("infrastructure", None)
        if problem.problem_id == self._fail:
            raise self._error
        right = problem.problem_id == "a"
        return Verdict("correct" if right else "wrong", float(right), extracted="2")


async def test_every_sample_is_scored_once(make_trajectory):
    source, scorer, seen = Source(make_trajectory), Scorer(), []
    report = await evaluate(PROBLEMS, source, scorer, EvalSettings(samples=4), seen.append)
    assert source.calls == [[("a", 0, 4), ("b", 0, 4), ("c", 0, 4)]]
    assert len(set(scorer.request_ids)) == len(scorer.request_ids) == 12
    assert report.pass_at_1.mean == pytest.approx(1 / 3)
    assert report.complete
    assert {sample.key for sample in seen} == {(name, index) for name in "abc" for index in range(4)}
    assert all(sample.trajectory is not None for sample in seen)


async def test_repeated_trajectory_counts_once(make_trajectory):
    source = Source(make_trajectory, lambda call, items: [*items, *items])
    scorer = Scorer()
    report = await evaluate(PROBLEMS, source, scorer, EvalSettings(samples=2))
    assert (report.overall.scored, len(scorer.request_ids)) == (6, 6)


async def test_samples_the_stream_lost_are_asked_for_again_by_index(make_trajectory):
    source = Source(make_trajectory, lambda call, items: [t for t in items if call > 1 or t.sample_index not in (1, 3)])
    report = await evaluate(PROBLEMS[:1], source, Scorer(), EvalSettings(samples=5))
    assert source.calls == [[("a", 0, 5)], [("a", 1, 1), ("a", 3, 1)]]
    assert report.complete


async def test_infrastructure_samples_are_made_again(make_trajectory):
    def edit(call, items):
        lost = make_trajectory("b", 0, end_reason=EndReason.INFRASTRUCTURE)
        return [lost if call == 1 and item.problem_id == "b" else item for item in items]

    source = Source(make_trajectory, edit)
    report = await evaluate(PROBLEMS, source, Scorer(), EvalSettings())
    assert source.calls[1] == [("b", 0, 1)]
    assert (report.complete, report.overall.excluded) == (True, 0)


async def test_what_stays_lost_is_missing_and_never_a_zero(make_trajectory):
    lost = make_trajectory("b", 0, end_reason=EndReason.INFRASTRUCTURE)
    source = Source(make_trajectory, lambda call, items: [lost if t.problem_id == "b" else t for t in items])
    report = await evaluate(PROBLEMS, source, Scorer(), EvalSettings(retries=1))
    assert (report.missing, report.short_problems, report.overall.excluded) == (1, ("b",), 1)
    assert report.pass_at_1.mean == 0.5


async def test_outage_in_mid_stream_is_bridged(make_trajectory):
    source = Source(make_trajectory, lambda call, items: [items[0], UNAVAILABLE] if call in (1, 2) else items)
    report = await evaluate(PROBLEMS, source, Scorer(), EvalSettings(retries=0))
    assert source.calls == [
        [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)],
        [("b", 0, 1), ("c", 0, 1)],
        [("c", 0, 1)],
    ]
    assert report.complete


async def test_lasting_outage_is_raised_and_finished_samples_are_kept(make_trajectory, tmp_path):
    path = tmp_path / "samples.jsonl"
    source = Source(make_trajectory, lambda call, items: [items[0], UNAVAILABLE] if call == 1 else [UNAVAILABLE])
    with pytest.raises(ServiceUnavailableError):
        await evaluate(PROBLEMS, source, Scorer(), EvalSettings(outage_patience_seconds=0), samples_path=path)
    assert [sample.problem_id for sample in read_samples(path)] == ["a"]


async def test_refusal_by_the_service_is_not_retried(make_trajectory):
    source = Source(make_trajectory, lambda call, items: [EngineNotReadyError("other weights")])
    with pytest.raises(EngineNotReadyError):
        await evaluate(PROBLEMS, source, Scorer(), EvalSettings())
    assert len(source.calls) == 1


async def test_resumed_evaluation_makes_only_the_rest_and_reports_the_union(make_trajectory, tmp_path):
    path = tmp_path / "samples.jsonl"
    await evaluate(PROBLEMS[:2], Source(make_trajectory), Scorer(), EvalSettings(), samples_path=path)
    source, seen = Source(make_trajectory), []
    report = await evaluate(PROBLEMS, source, Scorer(), EvalSettings(samples=2), seen.append, samples_path=path)
    assert source.calls == [[("a", 1, 1), ("b", 1, 1), ("c", 0, 2)]]
    assert len(seen) == 4
    assert (report.pass_at_1.samples, report.pass_at_1.problems) == (6, 3)


async def test_finished_evaluation_asks_for_nothing(make_trajectory, tmp_path):
    path = tmp_path / "samples.jsonl"
    first = await evaluate(PROBLEMS, Source(make_trajectory), Scorer(), EvalSettings(), samples_path=path)
    source = Source(make_trajectory)
    assert await evaluate(PROBLEMS, source, Scorer(), EvalSettings(), samples_path=path) == first
    assert source.calls == []


async def test_samples_of_another_policy_are_refused(make_trajectory, tmp_path):
    path = tmp_path / "samples.jsonl"
    await evaluate(PROBLEMS, Source(make_trajectory), Scorer(), EvalSettings(), samples_path=path, policy="base")
    with pytest.raises(UserInputError, match="policy"):
        await evaluate(PROBLEMS, Source(make_trajectory), Scorer(), EvalSettings(), samples_path=path, policy="sft")


async def test_scoring_failure_ends_the_evaluation_and_keeps_the_other_samples(make_trajectory, tmp_path):
    path = tmp_path / "samples.jsonl"
    scorer = Scorer("b", InfrastructureError("broken verdict"))
    with pytest.raises(InfrastructureError, match="broken verdict"):
        await evaluate(PROBLEMS[:2], Source(make_trajectory), scorer, EvalSettings(), samples_path=path)
    assert [sample.problem_id for sample in read_samples(path)] == ["a"]


async def test_reward_service_that_stays_away_ends_the_evaluation_at_once(make_trajectory):
    source = Source(make_trajectory)
    with pytest.raises(ServiceUnavailableError):
        await evaluate(PROBLEMS, source, Scorer("b", ServiceUnavailableError("no verdicts")), EvalSettings())
    assert len(source.calls) == 1


async def test_problem_nobody_asked_for_is_a_broken_contract(make_trajectory):
    source = Source(make_trajectory, lambda call, items: [make_trajectory("z")])
    with pytest.raises(InfrastructureError, match="'z'"):
        await evaluate(PROBLEMS, source, Scorer(), EvalSettings())


async def test_cancelling_stops_the_stream_and_the_scoring(make_trajectory):
    closed, scoring = asyncio.Event(), asyncio.Event()

    class EndlessSource:
        async def generate_groups(self, problems, *rest):
            try:
                yield make_trajectory("a", 0)
                await asyncio.Event().wait()
            finally:
                closed.set()

    class StuckScorer:
        async def score(self, problem, trajectory, *, request_id):
            scoring.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(evaluate(PROBLEMS, EndlessSource(), StuckScorer(), EvalSettings()))
    await scoring.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_many_problems_are_asked_for_in_bounded_requests(make_trajectory, monkeypatch):
    module = importlib.import_module("rstar_eval.evaluate")  # the package's name for it is the function
    monkeypatch.setattr(module, "_PROBLEMS_PER_CALL", 2)
    monkeypatch.setattr(module, "_SCORING_AT_ONCE", 2)
    source = Source(make_trajectory)
    report = await evaluate(PROBLEMS, source, Scorer(), EvalSettings(samples=3))
    assert [len(call) for call in source.calls] == [2, 1]
    assert report.overall.scored == 9


@pytest.mark.parametrize("problems", [[], [PROBLEMS[0], PROBLEMS[0]]])
async def test_no_problems_and_repeated_ids_are_refused(make_trajectory, problems):
    with pytest.raises(UserInputError, match="problem"):
        await evaluate(problems, Source(make_trajectory), Scorer(), EvalSettings())
