"""How an evaluation samples. Stored beside every score, because a score means nothing without it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_rollout.limits import RolloutLimits, SamplingSettings, ToolSettings

__all__ = ["EvalSettings"]

# How much is sampled and how hard it is tried, as opposed to from which distribution.
_EFFORT_FIELDS = frozenset({"samples", "retries", "score_timeout_seconds", "outage_patience_seconds"})


@dataclass(frozen=True)
class EvalSettings:
    """Sampling of one evaluation. The paper's own evaluations: 16 samples, 0.6, 30 turns, 30K tokens (section 5).

    Raises:
        UserInputError: for a value out of range, and for several samples at temperature 0, which would be one
            sample counted several times.
    """

    samples: int = 1
    """Samples per problem."""
    temperature: float = 0.6
    max_turns: int = 30
    max_response_tokens: int = 30_000
    """Policy, tool and separator tokens after the prompt."""
    tools_enabled: bool = True
    """Off: the prompt names no tool and no call is executed."""
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    max_total_tokens: int = 0
    """Prompt and response together; 0: what the engine's context allows."""
    max_tool_output_tokens: int = 0
    """Of one tool response; 0: no limit of its own."""
    max_repeated_calls: int = 0
    """Consecutive invalid or identical calls after which a rollout ends; 0: no limit."""
    tool_wall_seconds: float = 0.0
    """Of one tool call; 0: the sandbox's default."""
    tool_memory_bytes: int = 0
    """Of one tool call; 0: the sandbox's default."""
    verifier: str = ""
    """Verifier of the reward service; "": its default."""
    retries: int = 2
    """How often samples lost to infrastructure are asked for again."""
    score_timeout_seconds: float = 120.0
    """Deadline of one scoring call."""
    outage_patience_seconds: float = 60.0
    """How long a rollout service that is away is waited for, counted from the last trajectory it sent."""

    def __post_init__(self) -> None:
        _at_least("samples", self.samples, 1)
        _at_least("max_turns", self.max_turns, 1)
        _at_least("max_response_tokens", self.max_response_tokens, 1)
        for name in ("seed", "top_k", "max_total_tokens", "max_tool_output_tokens", "max_repeated_calls"):
            _at_least(name, getattr(self, name), 0)
        for name in ("retries", "tool_memory_bytes", "tool_wall_seconds", "outage_patience_seconds"):
            _at_least(name, getattr(self, name), 0)
        if not 0 <= self.temperature <= 100:
            raise UserInputError("temperature", self.temperature, "a number from 0 to 100")
        if not 0 < self.top_p <= 1:
            raise UserInputError("top_p", self.top_p, "a number above 0, at most 1")
        if not self.score_timeout_seconds > 0:
            raise UserInputError("score_timeout_seconds", self.score_timeout_seconds, "seconds above 0")
        if self.samples > 1 and self.temperature == 0:
            raise UserInputError(
                "samples",
                self.samples,
                "1 at temperature 0, where all samples of a problem are the same one",
            )

    @property
    def sampling_key(self) -> dict[str, Any]:
        """What decides the distribution a sample comes from. Samples are pooled only where it is equal."""
        return {name: value for name, value in asdict(self).items() if name not in _EFFORT_FIELDS}

    def to_json_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json_dict(cls, values: dict[str, Any]) -> EvalSettings:
        """The settings stored by `to_json_dict`.

        Raises:
            UserInputError: for an unknown key or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise UserInputError("settings", name, f"one of {', '.join(sorted(known))}")
        return cls(**values)

    def sampling(self) -> SamplingSettings:
        """The sampling part of a rollout request; a ledger is complete only with log-probabilities."""
        return SamplingSettings(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed, log_probs=True
        )

    def limits(self) -> RolloutLimits:
        """The limits part of a rollout request."""
        return RolloutLimits(
            max_turns=self.max_turns,
            max_response_tokens=self.max_response_tokens,
            max_total_tokens=self.max_total_tokens,
            max_tool_output_tokens=self.max_tool_output_tokens,
            max_repeated_calls=self.max_repeated_calls,
        )

    def tools(self) -> ToolSettings:
        """The tool part of a rollout request."""
        return ToolSettings(
            enabled=self.tools_enabled, wall_seconds=self.tool_wall_seconds, memory_bytes=self.tool_memory_bytes
        )


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise UserInputError(name, value, f"a whole number from {least}")
