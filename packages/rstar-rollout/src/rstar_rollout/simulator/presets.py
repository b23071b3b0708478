"""Named scenarios. ``paper-64gpu``: the paper's rollout step on 64 MI300X, from its figures.

Of the paper are: the model, the GPUs, 512 problems x 32 rollouts, the limits on tokens and turns, tools of 0.3 s on
average, up to 45K calls a step (2.75 a rollout), about 10 % of the rollouts truncated at 8K and mean lengths near
4K and 6K tokens; of the released script that an engine is given 0.8 of a GPU's memory. Ours are: 256 slots for a GPU,
the split of variance between and within problems (half and half), the sizes of prompts and tool results, and what
share of a GPU's figures an engine reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar_rollout.simulator.run import Cluster
from rstar_rollout.simulator.speed import Gpu, ModelShape, engine_kv_tokens, speed_from_hardware
from rstar_rollout.simulator.workload import Lognormal, WorkloadShape

__all__ = ["PRESETS", "Scenario", "paper_64gpu"]


@dataclass(frozen=True)
class Scenario:
    """One step to simulate."""

    name: str
    layout: str
    cluster: Cluster
    workload: WorkloadShape


QWEN3_14B = ModelShape(parameters=14.77e9, kv_bytes_per_token=163_840)
MI300X = Gpu(memory_bytes=192e9, bandwidth=5.3e12, operations=1.307e15, memory_share=0.8)
_SLOTS_PER_GPU = 256
_ALL_REDUCE_SECONDS = 2.0e-3  # 80 reductions of a decode step over two GPUs, 25 us each

_LIMITS = {
    # limit in tokens: (turns, median of the unlimited length, deviation of its logarithm)
    8192: (10, 3400.0, 0.69),
    12288: (15, 5100.0, 0.69),
}


def paper_64gpu() -> list[Scenario]:
    """Both layouts with both limits."""
    scenarios: list[Scenario] = []
    for tensor_parallel in (1, 2):
        engines = 64 // tensor_parallel
        cluster = Cluster(
            engines=engines,
            speed=speed_from_hardware(QWEN3_14B, MI300X, tensor_parallel, _ALL_REDUCE_SECONDS),
            kv_tokens=engine_kv_tokens(QWEN3_14B, MI300X, tensor_parallel),
            slots=_SLOTS_PER_GPU * tensor_parallel,
        )
        for limit, (turns, median, sigma) in _LIMITS.items():
            workload = WorkloadShape(
                problems=512,
                samples=32,
                prompt=Lognormal(400.0, 0.25),
                response=Lognormal(median, sigma),
                group_share=0.5,
                calls=2.75,
                tool_tokens=Lognormal(90.0, 0.8),
                tool_seconds=Lognormal(0.22, 0.79),  # mean 0.3
                max_response_tokens=limit,
                max_turns=turns,
            )
            name = f"{engines}xTP{tensor_parallel}-{limit // 1024}K"
            scenarios.append(Scenario(name, f"tp{tensor_parallel}", cluster, workload))
    return scenarios


PRESETS = {"paper-64gpu": paper_64gpu}
