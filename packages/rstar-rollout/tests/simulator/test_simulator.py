"""The simulator: speed, engines, workload, policies over a step, bounds, report."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_rollout.scheduler.registry import make_policy
from rstar_rollout.simulator.bounds import longest_rollout_seconds, lower_bound_seconds, serial_bound_seconds
from rstar_rollout.simulator.engine import SimulatedEngine
from rstar_rollout.simulator.oracle import true_peak
from rstar_rollout.simulator.presets import Scenario, paper_64gpu
from rstar_rollout.simulator.report import POLICY_NAMES, run_scenario, to_json, write_plot
from rstar_rollout.simulator.run import Cluster, simulate
from rstar_rollout.simulator.speed import SpeedCurve
from rstar_rollout.simulator.workload import SimulatedRollout, Turn, draw_workload

SPEED = SpeedCurve(a=0.01, b=0.001, c=1e-6, prefill=1e-4)


def small(layout: int = 0, engines: int = 4, problems: int = 24, kv_share: float = 1.0) -> Scenario:
    """A scenario of the preset with few engines and groups."""
    scenario = paper_64gpu()[layout]
    cluster = dataclasses.replace(
        scenario.cluster, engines=engines, kv_tokens=int(scenario.cluster.kv_tokens * kv_share)
    )
    return dataclasses.replace(
        scenario, cluster=cluster, workload=dataclasses.replace(scenario.workload, problems=problems)
    )


@given(st.floats(0, 500), st.integers(1, 300), st.floats(0, 1e6))
def test_steps_and_seconds_are_inverse(steps: float, sequences: int, context: float):
    seconds = SPEED.steps_seconds(steps, sequences, context)
    assert SPEED.steps_within(seconds, sequences, context) == pytest.approx(steps, rel=1e-6, abs=1e-6)


def test_one_rollout_alone_takes_the_time_of_its_steps_and_tools():
    rollout = SimulatedRollout("r", "g", 100, 1000, (Turn(50, 2.0, 20), Turn(30)))
    outcome = simulate([rollout], Cluster(1, SPEED, 10_000, 8), make_policy("kv_balanced"))
    decode = SPEED.steps_seconds(50, 1, 100) + SPEED.steps_seconds(30, 1, 170)
    assert outcome.step_time_s == pytest.approx(decode + 2.0 + 120 * SPEED.prefill, rel=1e-6)
    assert outcome.step_time_s == pytest.approx(longest_rollout_seconds([rollout], SPEED), rel=1e-2)
    assert outcome.idle_share == pytest.approx(2.0 / outcome.step_time_s, rel=1e-6)


def test_two_rollouts_at_once_share_the_steps():
    pair = [SimulatedRollout(str(index), str(index), 1, 1000, (Turn(100),)) for index in range(2)]
    outcome = simulate(pair, Cluster(1, SPEED, 10_000, 8), make_policy("kv_balanced"))
    assert outcome.step_time_s == pytest.approx(SPEED.steps_seconds(100, 2, 2) + 2 * SPEED.prefill, rel=1e-3)


def test_overflow_evicts_half_and_computes_their_tokens_again():
    rollouts = [SimulatedRollout(str(index), str(index), 10, 100, (Turn(90),)) for index in range(10)]
    outcome = simulate(rollouts, Cluster(1, SPEED, 600, 100), make_policy("static"))
    assert outcome.evictions >= 5
    assert outcome.recomputed_tokens > 0
    assert outcome.peak_kv_share <= 1.0 + 1e-9


def test_a_parked_prefix_is_lost_only_when_its_memory_is_needed():
    engine = SimulatedEngine("e", SPEED, 300)
    engine.begin_turn("a", "a", 10, 200, 10, 50)
    engine.advance(engine.next_event() or 0.0)
    assert engine.ended() == ["a"]
    engine.begin_turn("b", "b", 10, 290, 10, 280)
    engine.advance((engine.next_event() or 0.0) - 1e-6)
    engine.begin_turn("a", "a", 10, 200, 5, 1)
    engine.advance(engine.next_event() or 0.0)
    engine.ended()
    engine.finish("b")
    assert engine.recomputed_tokens == 50


@pytest.mark.parametrize("layout", [0, 1, 2, 3])
def test_kv_balanced_recomputes_nothing(layout: int):
    scenario = small(layout, problems=32)
    outcome = simulate(draw_workload(scenario.workload, 5), scenario.cluster, make_policy("kv_balanced"))
    assert outcome.recomputed_tokens == outcome.evictions == 0


def test_learned_admission_is_faster_than_the_worst_case_without_overflow():
    report = run_scenario(small(1, problems=48), 3, ("kv_balanced", "kv_learned"))
    worst, learned = report.outcomes
    assert learned.recomputed_tokens == 0
    assert learned.step_time_s < 0.92 * worst.step_time_s


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_no_policy_beats_the_bounds(policy: str):
    report = run_scenario(small(kv_share=0.5), 7, (policy,))
    assert report.outcomes[0].step_time_s >= report.floor_s


def test_equal_seeds_give_equal_outcomes():
    first, second = (run_scenario(small(problems=8), 11) for _ in range(2))
    assert to_json([first], 11) == to_json([second], 11)


def test_bound_of_one_engine_full_of_equal_rollouts_is_its_time():
    rollouts = [SimulatedRollout(str(index), "g", 1, 1000, (Turn(100),)) for index in range(8)]
    outcome = simulate(rollouts, Cluster(1, SPEED, 100_000, 8), make_policy("static"))
    assert outcome.step_time_s == pytest.approx(lower_bound_seconds(rollouts, SPEED, 1, 8), rel=1e-2)


def test_serial_bound_counts_the_steps_of_the_longest_rollout():
    equal = [SimulatedRollout(str(index), "g", 1, 1000, (Turn(100),)) for index in range(8)]
    assert serial_bound_seconds(equal, SPEED, 1, 8) == pytest.approx(lower_bound_seconds(equal, SPEED, 1, 8))
    uneven = [*equal[:7], SimulatedRollout("long", "g", 1, 1000, (Turn(900),))]
    extra = serial_bound_seconds(uneven, SPEED, 1, 8) - lower_bound_seconds(uneven, SPEED, 1, 8)
    assert extra == pytest.approx(SPEED.a * (900 - 200))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_true_peak_is_what_a_walk_over_the_steps_finds(rollouts: list[tuple[int, int]]):
    spans = [(float(length), float(length + more)) for length, more in rollouts]
    walked = max(
        (sum(length + step for length, final in spans if length + step <= final) for step in range(52)), default=0
    )
    assert true_peak(spans) == pytest.approx(walked)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_rollouts_keep_their_limits(seed: int):
    shape = dataclasses.replace(small(1).workload, problems=30)
    for rollout in draw_workload(shape, seed):
        assert 1 <= rollout.response_tokens <= shape.max_response_tokens
        assert 1 <= len(rollout.turns) <= shape.max_turns
        assert all(turn.tokens >= 1 for turn in rollout.turns)
        assert rollout.turns[-1].tool_tokens == 0


def test_preset_resembles_the_papers_figures():
    for scenario, mean in zip(paper_64gpu(), (4000, 6000, 4000, 6000), strict=True):
        rollouts = draw_workload(scenario.workload, 1)
        assert len(rollouts) == 512 * 32
        lengths = [rollout.response_tokens for rollout in rollouts]
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.1)
        truncated = sum(length >= scenario.workload.max_response_tokens for length in lengths) / len(lengths)
        assert 0.05 < truncated < 0.15
        calls = sum(len(rollout.turns) - 1 for rollout in rollouts)
        assert calls <= 45_000


def test_report_has_the_documented_form():
    report = to_json([run_scenario(small(problems=4), 1)], 1)
    assert set(report["policies"]) >= {"static", "least_in_flight", "kv_balanced", "oracle"}
    for figures in report["policies"].values():
        assert {"step_time_s", "idle_share", "recomputed_tokens"} <= set(figures)
    assert report["lower_bound_s"] > 0
    assert report["longest_rollout_s"] > 0
    json.dumps(report)


def test_plot_is_written_or_its_library_named(tmp_path: Path):
    report = run_scenario(small(problems=4), 1, ("static", "kv_balanced"))
    path = tmp_path / "plot.png"
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(UserInputError, match="matplotlib"):
            write_plot(path, [report])
    else:
        write_plot(path, [report])
        assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_policy_is_refused():
    with pytest.raises(UserInputError, match="oracle"):
        run_scenario(small(problems=1), 1, ("fastest",))
