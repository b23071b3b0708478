"""What a rollout may use, and how its tokens are sampled: the settings of one request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rstar_model.trajectory import Trajectory
from rstar_protos.errors import UserInputError
from rstar_rollout.continuation import check_partial

__all__ = ["ProblemRequest", "RolloutLimits", "SamplingSettings", "ToolSettings"]


@dataclass(frozen=True)
class ProblemRequest:
    """A problem and how many rollouts of it are wanted.

    ``first_sample_index`` lets a caller ask again for lost samples alone: sample i of a problem is the same rollout
    (same noise) whichever request it is part of. ``partial`` are rollouts of these samples that were stopped, to go on
    with. ``must_finish``: a request that stops after a number of groups waits for this one too.
    """

    problem_id: str
    group_id: str
    prompt: str
    samples: int = 1
    first_sample_index: int = 0
    partial: tuple[Trajectory, ...] = ()
    must_finish: bool = False

    def __post_init__(self) -> None:
        """Check the ids."""
        if not self.problem_id:
            raise UserInputError("problem_id", self.problem_id, "a non-empty id")
        for partial in self.partial:
            check_partial(partial, self.problem_id, self.group, self.sample_indices)
        if len({partial.sample_index for partial in self.partial}) < len(self.partial):
            raise UserInputError("partial", f"{len(self.partial)} of {self.problem_id}", "one rollout a sample")

    @property
    def group(self) -> str:
        """Id of the group: the problem's own where none was given."""
        return self.group_id or self.problem_id

    @property
    def sample_indices(self) -> range:
        """Of the rollouts that are wanted."""
        return range(self.first_sample_index, self.first_sample_index + self.samples)


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_p`` 1 and ``top_k`` 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    log_probs: bool = True

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserInputError("temperature", self.temperature, "a finite number from 0")
        if not 0 < self.top_p <= 1:
            raise UserInputError("top_p", self.top_p, "a number above 0, at most 1")
        if self.top_k < 0:
            raise UserInputError("top_k", self.top_k, "a whole number from 0 (0: off)")


@dataclass(frozen=True)
class RolloutLimits:
    """What one rollout may use. 0 means no limit, except for ``max_turns``.

    ``max_response_tokens`` covers policy, tool and separator tokens after the prompt; ``max_total_tokens`` the
    prompt as well. ``max_repeated_calls``: consecutive invalid or identical calls. Seconds and tokens.
    """

    max_turns: int = 10
    max_response_tokens: int = 8192
    max_total_tokens: int = 0
    max_wall_seconds: float = 0.0
    max_repeated_calls: int = 0
    max_tool_output_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_turns < 1:
            raise UserInputError("max_turns", self.max_turns, "a whole number from 1")
        if self.max_response_tokens < 1 and self.max_total_tokens < 1:
            raise UserInputError(
                "max_response_tokens", self.max_response_tokens, "a whole number from 1, here or in max_total_tokens"
            )

    def remaining(self, prompt_tokens: int, response_tokens: int) -> int:
        """Tokens that may still be added; 0 or less: none."""
        room: list[int] = []
        if self.max_response_tokens > 0:
            room.append(self.max_response_tokens - response_tokens)
        if self.max_total_tokens > 0:
            room.append(self.max_total_tokens - prompt_tokens - response_tokens)
        return min(room)


@dataclass(frozen=True)
class ToolSettings:
    """Whether tools are offered and run, and what one call may use (0: the service's default)."""

    enabled: bool = True
    wall_seconds: float = 5.0
    memory_bytes: int = 0
