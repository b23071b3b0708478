"""Rates, latencies and CPU of all targets, in interleaved rounds: what disturbs the machine disturbs them all."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_sandbox.bench.floor import Floor, measure_floor
from rstar_sandbox.bench.intervals import Mean, quantile
from rstar_sandbox.bench.load import Round, run_round
from rstar_sandbox.bench.programs import TIERS, Programs
from rstar_sandbox.bench.targets import Cold, Service, Stream, Target

__all__ = ["Plan", "measure_rates"]

_WARM_UP_SECONDS = 0.5
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    concurrencies: tuple[int, ...] = (1, 8, 64)
    tiers: tuple[str, ...] = TIERS
    rounds: int = 5
    seconds: float = 3.0
    """Of one round."""
    seed: int = 0

    def checked(self) -> Plan:
        """Itself, when it can be run.

        Raises:
            UserInputError: a field that cannot.
        """
        if self.rounds < 1:
            raise UserInputError("--rounds", self.rounds, "at least 1")
        if not 0 < self.seconds < math.inf:
            raise UserInputError("--seconds", self.seconds, "a positive number")
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise UserInputError("--concurrency", self.concurrencies, "at least 1")
        for tier in self.tiers:
            Programs(tier, 0)
        return self

    def steps(self, targets: int) -> int:
        """Rounds in all."""
        return len(self.tiers) * len(self.concurrencies) * self.rounds * targets


async def measure_rates(
    plan: Plan, service: Service, others: Sequence[Target], step: Callable[[str], None]
) -> dict[str, Any]:
    """Measures every target at every tier and concurrency.

    Args:
        plan: what to measure.
        service: this service.
        others: targets of the operator's beside the built-in ones.
        step: told before each round what comes.

    Returns:
        A report, ready for JSON; see `report`.
    """
    order = random.Random(plan.seed)  # noqa: S311 - the order of rounds
    floors: dict[str, list[Floor]] = {tier: [] for tier in plan.tiers}
    rows = []
    async with contextlib.AsyncExitStack() as stack:
        targets: list[Target] = [service, Stream(service), Cold(max(plan.concurrencies)), *others]
        for target in targets:
            await stack.enter_async_context(target.opened())
        for tier in plan.tiers:
            programs = Programs(tier, plan.seed)
            for target in targets:
                step(f"{tier}, warming {target.name}")
                await run_round(target, programs, 2, _WARM_UP_SECONDS)
            for concurrency in plan.concurrencies:
                rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
                for number in range(plan.rounds):
                    # One floor in each round: it is part of what is compared.
                    floor = await asyncio.to_thread(measure_floor, tier, min(1.0, plan.seconds))
                    floors[tier].append(floor)
                    for target in order.sample(targets, len(targets)):
                        step(f"{tier}, {concurrency} at once, round {number + 1}: {target.name}")
                        rounds[target.name].append(await run_round(target, programs, concurrency, plan.seconds))
                rows += [_row(tier, concurrency, name, found) for name, found in rounds.items()]
    return {
        "machine": _machine(),
        "isolation": service.isolation,
        "slots": service.slots,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "tiers_used": service.tier_seen,
        "floor": {tier: _floor(found) for tier, found in floors.items()},
        "rows": rows,
    }


def _row(tier: str, concurrency: int, name: str, rounds: Sequence[Round]) -> dict[str, Any]:
    calls = sum(each.calls for each in rounds)
    latencies = [value for each in rounds for value in each.latencies]
    added = [value for each in rounds for value in each.added]

    def cpu(pick: Callable[[Round], float]) -> dict[str, float]:
        return _mean([1000 * pick(each) / each.calls for each in rounds])

    parts = sorted({part for each in rounds for part in each.server_cpu})
    phases = sorted({phase for each in rounds for phase in each.phase_cpu})
    return {
        "tier": tier,
        "concurrency": concurrency,
        "target": name,
        "calls": calls,
        "wrong": sum(each.wrong for each in rounds),
        "calls_per_second": _mean([each.rate for each in rounds]),
        "rates": [round(each.rate, 3) for each in rounds],
        "latency_ms": {key: round(1000 * quantile(latencies, share), 3) for key, share in _SHARES.items()},
        "added_ms": {key: round(1000 * quantile(added, share), 3) for key, share in _SHARES.items()} if added else None,
        "cpu_ms_per_call": {
            "client": cpu(lambda each: each.client_cpu),
            **{part: cpu(partial(_server_cpu, part)) for part in parts},
            "all": cpu(lambda each: each.client_cpu + sum(each.server_cpu.values())),
            "machine": cpu(lambda each: each.machine_cpu),
        },
        "phase_cpu_ms_per_call": {phase: cpu(partial(_phase_cpu, phase)) for phase in phases},
    }


def _floor(found: Sequence[Floor]) -> dict[str, Any]:
    return {
        "calls_per_second": _mean([each.calls_per_second for each in found]),
        "wall_ms": _mean([each.wall_milliseconds for each in found]),
        "cpu_ms": _mean([each.cpu_milliseconds for each in found]),
    }


def _mean(values: Sequence[float]) -> dict[str, float]:
    mean = Mean.of(values)
    return {"mean": mean.value, "half_width": mean.half_width}


def _server_cpu(part: str, measured: Round) -> float:
    return measured.server_cpu[part]


def _phase_cpu(phase: str, measured: Round) -> float:
    return measured.phase_cpu[phase]


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    return {"python": sys.version.split()[0], "system": platform.platform(), "cores": cores}
