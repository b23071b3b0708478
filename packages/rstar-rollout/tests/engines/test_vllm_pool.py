"""Two real vLLM engines in a pool, one killed in mid-step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import load_tokenizer
from rstar_model.types import EndReason
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import WeightSource
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.scheduler.policies import KvBalanced

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


async def test_a_killed_engine_costs_no_rollout_and_mixes_no_weights(
    tiny_model: Path, other_model: Path, monkeypatch: pytest.MonkeyPatch
):
    from rstar_rollout.engines.weight_files import folder_checksum

    monkeypatch.setattr("rstar_rollout.engines.pool._RESTARTS", 0)  # a third start would be most of the time
    settings = VllmSettings(dtype="float32", kv_gib=0.25, max_model_tokens=1024, max_sequences=8, cpu_threads="nobind")
    pool = EnginePool([lambda: VllmEngine(tiny_model, settings)] * 2, KvBalanced(), slots=8)
    await pool.start()
    try:
        await pool.begin_weight_update(2, WeightSource(str(other_model)))
        await pool.commit_weight_update(2, folder_checksum(other_model))
        loop = AgentLoop(pool, ChatFormat.load("rstar"), load_tokenizer(tiny_model), None)
        problems = [ProblemRequest(f"p{index}", f"g{index}", f"{index}+1?", 6) for index in range(6)]
        limits = RolloutLimits(max_turns=1, max_response_tokens=400)
        before = pool.tokens_generated
        delivered = []
        killed = False
        batch = loop.batch(problems, SamplingSettings(seed=1), limits, ToolSettings(enabled=False))
        async for trajectory in batch:
            delivered.append(trajectory)
            if not killed:
                # The first rollout has ended: both engines are in the midst of others.
                assert pool.tokens_generated > before
                assert [state.running > 0 for state in await pool.states()] == [True, True]
                victim = max(multiprocessing.active_children(), key=lambda process: process.pid or 0)
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
                killed = True
        ids = [trajectory.trajectory_id for trajectory in delivered]
        assert sorted(ids) == sorted(f"g{group}/{sample}" for group in range(6) for sample in range(6))
        assert {trajectory.end_reason for trajectory in delivered} <= {EndReason.ANSWERED, EndReason.TRUNCATED}
        versions = {version for t in delivered for version in t.ledger.weight_versions if version is not None}
        assert versions == {2}
        assert pool.moved_rollouts > 0
        assert [state.paused for state in await pool.states()].count(True) == 1
    finally:
        await pool.shutdown()
