"""Trajectories and samples for tests that need no policy, and real services."""

import sys

import hypothesis
import pytest

from rstar_eval.problems import EvalProblem
from rstar_eval.sample import SampleRecord
from rstar_eval.scoring import Verdict
from rstar_eval.settings import EvalSettings
from rstar_model.ledger import TokenLedger
from rstar_model.trajectory import Segment, ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.service import EmbeddedService

# Properties are about results; how long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def _trajectory(
    problem_id="p",
    sample_index=0,
    text="<answer>\\boxed{2}</answer>",
    *,
    end_reason=EndReason.ANSWERED,
    calls=(),
    response_tokens=4,
    turns=1,
):
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1, 2, 3])
    ledger.append(SpanKind.POLICY, range(response_tokens), log_probs=[-0.5] * response_tokens, weight_version=1)
    return Trajectory(
        trajectory_id=f"{problem_id}-{sample_index}",
        problem_id=problem_id,
        group_id=problem_id,
        sample_index=sample_index,
        ledger=ledger,
        tool_calls=tuple(ToolCallRecord(0, "python", "{}", ToolStatus(status), "") for status in calls),
        end_reason=end_reason,
        turns=turns,
        answer_tags=text.count("<answer>"),
        segments=(Segment(SpanKind.PROMPT, "prompt"), Segment(SpanKind.POLICY, text)),
        engine="test",
    )


def _sample(problem_id="p", sample_index=0, status="correct", *, answer="2", tags=(), policy="", **trajectory):
    rewards = {"correct": 1.0, **dict.fromkeys(("wrong", "no_answer", "hedged", "too_complex", "timeout"), 0.0)}
    extracted = "2" if status in ("correct", "wrong") else None
    return SampleRecord.of(
        EvalProblem(problem_id, f"text of {problem_id}", answer, tuple(tags)),
        _trajectory(problem_id, sample_index, **trajectory),
        Verdict(status, rewards.get(status), "", extracted),
        policy=policy,
        settings=EvalSettings().sampling_key,
    )


@pytest.fixture
def make_trajectory():
    return _trajectory


@pytest.fixture
def make_sample():
    return _sample


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    """Endpoints of a real sandbox and a real verifier."""
    folder = tmp_path_factory.mktemp("services")
    sandbox = [sys.executable, "-m", "rstar_sandbox", "serve", "--slots", "2", "--warm", ""]
    reward = [sys.executable, "-m", "rstar_reward", "serve", "--workers", "1"]
    with (
        EmbeddedService("sandbox", sandbox, log_path=folder / "sandbox.log") as tools,
        EmbeddedService("reward", reward, log_path=folder / "reward.log") as verifier,
    ):
        yield {"sandbox": tools.endpoint, "reward": verifier.endpoint}
