"""One evaluated sample: a trajectory, its verdict and the settings it was made with, as one JSON line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rstar_eval.problems import EvalProblem
from rstar_eval.scoring import Verdict
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, ToolStatus
from rstar_protos.errors import UserInputError

__all__ = ["SampleRecord"]

_NOT_RUN = (ToolStatus.PARSE_ERROR, ToolStatus.UNKNOWN_TOOL, ToolStatus.UNAVAILABLE)
_LOST = ("infrastructure", "cancelled", "unscorable")


@dataclass(frozen=True)
class SampleRecord:
    """One sample as it is stored and reported.

    `status` is the verdict ("correct", "wrong", "no_answer", "hedged", "too_complex", "timeout", "bad_gold",
    "unscorable") or, for a rollout that never came to a verdict, "infrastructure" or "cancelled". `reward` is 1
    or 0, and None for a sample that counts in no score.
    """

    problem_id: str
    sample_index: int
    fingerprint: str
    """Of problem text and gold answer."""
    tags: tuple[str, ...]
    status: str
    reward: float | None
    reason: str
    extracted: str | None
    """The declared answer as the verifier read it; None: it found none."""
    answer_present: bool
    """The policy wrote an answer tag or a box, whether or not the verifier could read it."""
    end_reason: str
    turns: int
    tool_calls: int
    """All calls but those the sandbox could not take."""
    executed_tool_calls: int
    """Calls that parsed, named a known tool and were run, whatever came of them."""
    failed_tool_calls: int
    response_tokens: int
    policy_tokens: int
    wall_seconds: float
    trajectory_id: str
    engine: str
    policy: str
    """Which policy was evaluated, in the words of the caller."""
    settings: Mapping[str, Any]
    """The sampling settings of this sample."""
    segments: tuple[Mapping[str, Any], ...]
    """The decoded conversation as {"kind", "text", "turn"}: enough to grade it again."""
    trajectory: Trajectory | None = field(default=None, compare=False, repr=False)
    """The whole rollout with its tokens; not stored in the line."""

    @property
    def scored(self) -> bool:
        """Whether the sample counts in pass@1."""
        return self.reward is not None

    @property
    def correct(self) -> bool:
        """Whether the answer is right."""
        return self.reward == 1

    @property
    def lost(self) -> bool:
        """Lost to infrastructure: to be asked for again. A bad gold answer is excluded but not lost."""
        return self.status in _LOST

    @property
    def finished(self) -> bool:
        """Whether the policy ended the rollout by itself, rather than being cut."""
        return self.end_reason == EndReason.ANSWERED.value

    @property
    def key(self) -> tuple[str, int]:
        """What makes a sample the same one when it is made again."""
        return (self.problem_id, self.sample_index)

    @classmethod
    def of(
        cls,
        problem: EvalProblem,
        trajectory: Trajectory,
        verdict: Verdict,
        *,
        policy: str,
        settings: Mapping[str, Any],
    ) -> SampleRecord:
        """Puts a trajectory and its verdict together."""
        calls = [call for call in trajectory.tool_calls if call.status is not ToolStatus.UNAVAILABLE]
        return cls(
            problem_id=problem.problem_id,
            sample_index=trajectory.sample_index,
            fingerprint=problem.fingerprint,
            tags=problem.tags,
            status=verdict.status,
            reward=verdict.reward,
            reason=verdict.reason,
            extracted=verdict.extracted,
            answer_present=trajectory.answer_tags > 0 or "\\boxed" in trajectory.policy_text,
            end_reason=trajectory.end_reason.value,
            turns=trajectory.turns,
            tool_calls=len(calls),
            executed_tool_calls=sum(call.status not in _NOT_RUN for call in calls),
            failed_tool_calls=trajectory.failed_tool_calls,
            response_tokens=trajectory.response_tokens,
            policy_tokens=trajectory.policy_tokens,
            wall_seconds=trajectory.wall_seconds,
            trajectory_id=trajectory.trajectory_id,
            engine=trajectory.engine,
            policy=policy,
            settings=dict(settings),
            segments=tuple(
                {"kind": segment.kind.value, "text": segment.text, "turn": segment.turn}
                for segment in trajectory.segments
            ),
            trajectory=trajectory,
        )

    def to_json_dict(self) -> dict[str, Any]:
        """The fields as JSON values, without the trajectory."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "trajectory"}
        return {**values, "tags": list(self.tags), "segments": [dict(segment) for segment in self.segments]}

    @classmethod
    def from_json_dict(cls, values: Mapping[str, Any]) -> SampleRecord:
        """The sample of a stored line.

        Raises:
            UserInputError: naming the first field that is missing, unknown or of the wrong type.
        """
        for name, kinds in _STORED.items():
            if name not in values:
                raise UserInputError(name, "missing", "a line written by an evaluation")
            value = values[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise UserInputError(name, value, "a line written by an evaluation")
        for name in values:
            if name not in _STORED:
                raise UserInputError(name, values[name], "no such field in a line of an evaluation")
        return cls(**{**values, "tags": tuple(values["tags"]), "segments": tuple(values["segments"])})


_STORED: dict[str, tuple[type, ...]] = {
    "problem_id": (str,),
    "sample_index": (int,),
    "fingerprint": (str,),
    "tags": (list,),
    "status": (str,),
    "reward": (int, float, type(None)),
    "reason": (str,),
    "extracted": (str, type(None)),
    "answer_present": (bool,),
    "end_reason": (str,),
    "turns": (int,),
    "tool_calls": (int,),
    "executed_tool_calls": (int,),
    "failed_tool_calls": (int,),
    "response_tokens": (int,),
    "policy_tokens": (int,),
    "wall_seconds": (int, float),
    "trajectory_id": (str,),
    "engine": (str,),
    "policy": (str,),
    "settings": (dict,),
    "segments": (list,),
}
