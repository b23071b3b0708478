"""The simulator's prediction of a real step against the step: two engines on this machine, real tools.

    python benchmarks/simulator_check.py --model runs/quickstart-seed1/policy

Needs rstar-rollout[embedded]. First the speed curve is measured on the bare engines, both at work at once because they
share the machine: decode steps of several batch sizes and context lengths, and prefill. Then a step is made by the
agent loop under the scheduler with a real sandbox, and the lengths and tool latencies of its rollouts are replayed by
the simulator with the measured curve.

Exit status 1: prediction and step differ by more than 30 %.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import load_tokenizer
from rstar_protos.service import open_channel
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.embedded_sandbox import sandbox_endpoint
from rstar_rollout.engines.base import Engine, GenerationRequest, NoiseKey
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.transformers_engine import TransformersEngine, TransformersSettings
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.scheduler.registry import make_policy
from rstar_rollout.simulator.recorded import replay
from rstar_rollout.simulator.run import Cluster, simulate
from rstar_rollout.simulator.speed import SpeedCurve
from rstar_rollout.tool_executor import SandboxToolExecutor

MOST_ERROR = 0.3
STEPS = 24  # decode steps of one measurement
_counter = itertools.count()


def request(context: int, tokens: int) -> GenerationRequest:
    """Distinct ids, so that no cache helps."""
    number = next(_counter)
    return GenerationRequest(
        request_id=f"measure-{number}",
        sequence_id=f"measure-{number}",
        token_ids=[5 + (number * 7919 + index * 31) % 200 for index in range(context)],
        max_new_tokens=tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        stop_ids=frozenset(),
        noise=NoiseKey(0, "measure", number, 0),
    )


async def seconds_of(engines: Sequence[Engine], sequences: int, context: int, tokens: int) -> float:
    """Both engines generate at once; the mean of their times."""

    async def one(engine: Engine) -> float:
        requests = [request(context, tokens) for _ in range(sequences)]
        began = time.perf_counter()
        await asyncio.gather(*(engine.generate(each) for each in requests))
        spent = time.perf_counter() - began
        for each in requests:
            engine.release(each.sequence_id)
        return spent

    return sum(await asyncio.gather(*(one(engine) for engine in engines))) / len(engines)


async def measured_curve(engines: Sequence[Engine], slots: int) -> SpeedCurve:
    """Least squares over a grid of batch sizes and contexts."""
    import torch

    await seconds_of(engines, 2, 64, 4)  # warms up
    rows: list[list[float]] = []
    times: list[float] = []
    prefills: list[tuple[int, float]] = []
    for sequences in sorted({1, max(1, slots // 4), slots}):
        for context in (64, 384):
            first = await seconds_of(engines, sequences, context, 1)
            whole = await seconds_of(engines, sequences, context, 1 + STEPS)
            times.append(max(whole - first, 1e-6) / STEPS)
            rows.append([1.0, float(sequences), float(sequences * (context + STEPS / 2))])
            prefills.append((sequences * context, first))
    weights = torch.tensor([[1.0 / t] for t in times], dtype=torch.float64)  # relative errors count
    matrix = torch.tensor(rows, dtype=torch.float64) * weights
    solution = torch.linalg.lstsq(matrix, torch.tensor([times], dtype=torch.float64).T * weights).solution
    a, b, c = (max(0.0, float(value)) for value in solution[:, 0])
    step = a + b + c * 64
    tokens = sum(count for count, _ in prefills)
    prefill = max(1e-7, sum(spent - step for _, spent in prefills) / tokens)
    return SpeedCurve(a=max(a, 1e-6), b=b, c=c, prefill=prefill)


def problems(count: int, samples: int) -> list[ProblemRequest]:
    """Sums and products."""
    texts = [f"What is {17 + 13 * i} * {23 + 7 * i} + {i}?" for i in range(count)]
    return [ProblemRequest(f"p{index}", f"g{index}", text, samples) for index, text in enumerate(texts)]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Curve, step, prediction."""
    settings = TransformersSettings(
        dtype=arguments.dtype,
        deterministic=False,
        max_batch=arguments.slots,
        kv_gib=arguments.kv_gib,
        threads=1,
    )
    engines: list[TransformersEngine] = []

    def make() -> TransformersEngine:
        engines.append(TransformersEngine(arguments.model, settings))
        return engines[-1]

    pool = EnginePool([make] * arguments.engines, make_policy(arguments.scheduler), slots=arguments.slots)
    await pool.start()
    speed = await measured_curve(engines, arguments.slots)
    states = await pool.states()
    kv_tokens = states[0].total_kv_blocks * states[0].block_tokens
    limits = RolloutLimits(arguments.max_turns, arguments.max_response_tokens, max_tool_output_tokens=256)
    with sandbox_endpoint("embedded", slots=2) as endpoint:
        assert endpoint is not None
        async with open_channel(endpoint) as channel:
            loop = AgentLoop(
                pool,
                ChatFormat.load(arguments.chat_format),
                load_tokenizer(arguments.model),
                SandboxToolExecutor(channel),
            )
            warm = loop.batch(problems(2, 1), SamplingSettings(seed=99), limits, ToolSettings())
            async for _ in warm:
                pass
            began = time.perf_counter()
            batch = loop.batch(
                problems(arguments.problems, arguments.samples), SamplingSettings(seed=1), limits, ToolSettings()
            )
            trajectories = [trajectory async for trajectory in batch]
            real = time.perf_counter() - began
    recomputed = pool.recomputed_tokens
    await pool.shutdown()
    order = {problem.group_id: index for index, problem in enumerate(problems(arguments.problems, 1))}
    trajectories.sort(key=lambda trajectory: (order[trajectory.group_id], trajectory.sample_index))
    rollouts = replay(trajectories, arguments.max_response_tokens)
    cluster = Cluster(arguments.engines, speed, kv_tokens, arguments.slots)
    outcome = simulate(rollouts, cluster, make_policy(arguments.scheduler))
    return {
        "curve": {"a": speed.a, "b": speed.b, "c": speed.c, "prefill": speed.prefill},
        "rollouts": len(rollouts),
        "policy_tokens": sum(rollout.policy_tokens for rollout in rollouts),
        "tool_calls": sum(len(trajectory.tool_calls) for trajectory in trajectories),
        "real_s": real,
        "predicted_s": outcome.step_time_s,
        "error": outcome.step_time_s / real - 1.0,
        "real_recomputed_tokens": recomputed,
        "predicted_recomputed_tokens": outcome.recomputed_tokens,
    }


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a policy that calls tools")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-response-tokens", type=int, default=256)
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, default=1.0)
    parser.add_argument("--scheduler", default="kv_balanced")
    parser.add_argument("--chat-format", default="rstar")
    parser.add_argument("--result", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    print(json.dumps(result, indent=2))
    print(f"step {result['real_s']:.1f} s, predicted {result['predicted_s']:.1f} s ({result['error']:+.1%})")
    if arguments.result is not None:
        arguments.result.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if abs(result["error"]) <= MOST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main())
