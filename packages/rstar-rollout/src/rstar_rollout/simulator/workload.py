"""The rollouts of a step: prompt lengths, turns with their lengths, tool results and latencies.

They are drawn before the simulation and hidden from the policies, which learn a length when a rollout has ended.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["Lognormal", "SimulatedRollout", "Turn", "WorkloadShape", "draw_workload"]


@dataclass(frozen=True)
class Lognormal:
    """A log-normal distribution by its median and the deviation of the logarithm."""

    median: float
    sigma: float

    def draw(self, rng: random.Random, shift: float = 0.0) -> float:
        """One value; ``shift`` is added to the logarithm."""
        return math.exp(math.log(self.median) + shift + rng.gauss(0.0, self.sigma))

    @property
    def mean(self) -> float:
        """Its mean."""
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True)
class WorkloadShape:
    """What a step's rollouts look like. Lengths in tokens, latencies in seconds.

    ``response`` is the length that a rollout would have without limits, policy and tool tokens together;
    ``group_share`` is the share of its logarithm's variance that rollouts of one problem have in common;
    ``calls`` the mean number of turns with a tool call, geometrically distributed and cut at the turn limit.
    """

    problems: int
    samples: int
    prompt: Lognormal
    response: Lognormal
    group_share: float
    calls: float
    tool_tokens: Lognormal
    tool_seconds: Lognormal
    max_response_tokens: int
    max_turns: int

    @property
    def rollouts(self) -> int:
        """Rollouts of a step."""
        return self.problems * self.samples


@dataclass(frozen=True)
class Turn:
    """``tokens`` that the policy writes, then a tool call (none after the last turn) with its result."""

    tokens: int
    tool_seconds: float = 0.0
    tool_tokens: int = 0


@dataclass(frozen=True)
class SimulatedRollout:
    """A rollout with its future."""

    rollout_id: str
    group_id: str
    prompt_tokens: int
    max_new_tokens: int
    turns: tuple[Turn, ...]

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy writes."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def response_tokens(self) -> int:
        """Tokens after the prompt."""
        return sum(turn.tokens + turn.tool_tokens for turn in self.turns)


def draw_workload(shape: WorkloadShape, seed: int) -> list[SimulatedRollout]:
    """The rollouts of one step, group by group."""
    rng = random.Random(seed)  # noqa: S311  a simulation, nothing secret
    common, own = math.sqrt(shape.group_share), math.sqrt(1.0 - shape.group_share)
    rollouts: list[SimulatedRollout] = []
    for problem in range(shape.problems):
        prompt = max(1, round(shape.prompt.draw(rng)))
        shift = rng.gauss(0.0, shape.response.sigma * common)
        response = Lognormal(shape.response.median, shape.response.sigma * own)
        for sample in range(shape.samples):
            wanted = max(1, round(response.draw(rng, shift)))
            rollouts.append(
                SimulatedRollout(
                    f"{problem}/{sample}",
                    str(problem),
                    prompt,
                    shape.max_response_tokens,
                    _turns(shape, wanted, rng),
                )
            )
    return rollouts


def _turns(shape: WorkloadShape, wanted: int, rng: random.Random) -> tuple[Turn, ...]:
    """Cut a response of ``wanted`` tokens into turns; the limits on turns and tokens end it early."""
    calls = 0
    while calls < shape.max_turns - 1 and rng.random() < shape.calls / (1.0 + shape.calls):
        calls += 1
    results = [max(1, round(shape.tool_tokens.draw(rng))) for _ in range(calls)]
    written = max(calls + 1, wanted - sum(results))
    # Turns differ in length: exponential weights are the spacings of uniformly scattered calls.
    weights = [rng.expovariate(1.0) for _ in range(calls + 1)]
    total = sum(weights)
    room = shape.max_response_tokens
    turns: list[Turn] = []
    for index, weight in enumerate(weights):
        tokens = min(max(1, round(written * weight / total)), room)
        room -= tokens
        last = index == calls
        if last or room <= results[index]:
            # The last turn, or no room for the tool's result: the rollout ends here.
            turns.append(Turn(tokens))
            break
        turns.append(Turn(tokens, shape.tool_seconds.draw(rng), results[index]))
        room -= results[index]
    return tuple(turns)
