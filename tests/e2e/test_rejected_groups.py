"""Groups with equal rewards teach nothing: they are replaced as far as the recipe allows, counted, and logged.

One run of two stages. In the first, `solved`, every rollout is right, so all groups are rejected for ever. In the
second, `mixed`, half of the problems are `easy` ones, whose groups are rejected.
"""

import math
from collections import Counter

import pytest
from e2e_runs import SCRIPTED_TRAINER

SAMPLES = 4
STAGE = {
    "problems_per_step": 2,
    "group_size": 2,
    "rollouts_per_problem": SAMPLES,
    "max_turns": 3,
    "max_response_tokens": 1500,
    "learning_rate": 1e-3,
    "refill_rounds": 1,
}
# Two draws of two go through all four problems.
STEPS = 2


@pytest.fixture(scope="module")
def run(make_light):
    workplace = make_light()
    workplace.train_on(("easy: what", "what", "easy: what", "what"))
    stages = [{"name": "solved", "steps": 1, **STAGE}, {"name": "mixed", "steps": STEPS, **STAGE}]
    return workplace.start("run", "light", {"stages": stages}, trainer=SCRIPTED_TRAINER).succeed()


def rounds(run, stage, step):
    """Groups of a step by the round that they were rolled out in."""
    groups = {rollout["group_id"] for rollout in run.trajectories(stage, step)}
    # stage/step/problem in the first round, stage/step/round/problem after it.
    return Counter(0 if group.count("/") == 2 else int(group.split("/")[2]) for group in groups)


def test_step_without_any_accepted_group_is_counted_as_skipped(run):
    ((_, figures),) = run.steps("solved").values()
    assert figures["update_skipped"] == 1
    assert (figures["groups_kept"], figures["groups_rejected"]) == (0, 4)
    assert "loss" not in figures


def test_skipped_step_is_told(run):
    assert "solved step 1: no group had unequal rewards" in run.events()


def test_skipped_step_leaves_the_policy_as_it_is(run):
    spans = [span for rollout in run.trajectories("mixed", 1) for span in rollout["spans"]]
    assert {span["weight_version"] for span in spans if span["kind"] == "policy"} == {1}


def test_refill_ends_after_its_rounds(run):
    assert rounds(run, "solved", 1) == {0: 2, 1: 2}


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_as_many_groups_are_refilled_as_were_rejected(run, step):
    rejected = sum(
        rollout["problem_id"] in ("q0", "q2") and rollout["group_id"].count("/") == 2
        for rollout in run.trajectories("mixed", step)
    )
    assert rounds(run, "mixed", step)[1] == rejected // SAMPLES


def test_easy_problems_are_met_in_the_first_round(run):
    assert sum(rounds(run, "mixed", step)[1] for step in range(1, STEPS + 1)) > 0


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_every_rollout_of_every_round_is_counted(run, step):
    _, figures = list(run.steps("mixed").values())[step - 1]
    assert figures["rollouts"] == len(run.trajectories("mixed", step))
    assert figures["rollouts"] == SAMPLES * (figures["groups_kept"] + figures["groups_rejected"])


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_only_accepted_groups_are_trained_on(run, step):
    _, figures = list(run.steps("mixed").values())[step - 1]
    kept = Counter(rollout["problem_id"] for rollout in run.trajectories("mixed", step) if rollout["kept"])
    trained = sum(count for problem, count in kept.items() if problem in ("q1", "q3"))
    assert trained == 2 * figures["groups_kept"] > 0
    assert math.isfinite(figures["loss"])
    assert figures["update_skipped"] == 0
