"""Resample-on-Correct: counts, penalties, seeds, and frequencies against exact enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_model.ledger import TokenLedger
from rstar_model.trajectory import ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.roc import (
    Mode,
    Reason,
    RejectReason,
    ScoredRollout,
    error_penalty,
    format_penalty,
    kept_counts,
    release_counts,
    resample_on_correct,
)

rollout_fields = st.tuples(
    st.sampled_from([None, 0.0, 1.0]), st.integers(0, 6), st.integers(0, 6), st.integers(0, 5), st.integers(1, 10)
)


def build(fields) -> list[ScoredRollout]:
    return [
        ScoredRollout(f"t{i:02d}", reward, max(calls, failed), min(calls, failed), tags, turns)
        for i, (reward, calls, failed, tags, turns) in enumerate(fields)
    ]


def group(positives: int, negatives: int) -> list[ScoredRollout]:
    return [ScoredRollout(f"p{i:02d}", 1.0, 1, 0, 1, 1) for i in range(positives)] + [
        ScoredRollout(f"n{i:02d}", 0.0, 1, 0, 1, 1) for i in range(negatives)
    ]


@pytest.mark.parametrize("counts", [kept_counts, release_counts], ids=["paper", "release"])
def test_counts_are_legal_for_every_group_of_up_to_40(counts):
    for positives in range(41):
        for negatives in range(41 - positives):
            for keep in range(1, 41):
                kept_pos, kept_neg = counts(positives, negatives, keep)
                assert 0 <= kept_pos <= positives
                assert 0 <= kept_neg <= negatives
                assert kept_pos + kept_neg == min(keep, positives + negatives)


@pytest.mark.parametrize("mode", Mode)
def test_every_group_of_up_to_40_yields_as_many_rollouts_as_asked_for(mode):
    for positives in range(41):
        for negatives in range(41 - positives):
            rollouts = group(positives, negatives)
            for keep in {1, 7, 16, max(1, positives), max(1, positives + negatives - 1)}:
                outcome = resample_on_correct(rollouts, keep, seed=1, group_id="g", mode=mode)
                assert len(set(outcome.kept_ids)) == min(keep, len(rollouts))
                assert (outcome.positives, outcome.negatives) == (positives, negatives)


def test_negatives_keep_half_when_positives_suffice():
    assert kept_counts(16, 16, 16) == (8, 8)
    assert kept_counts(25, 7, 16) == (13, 3)
    assert kept_counts(4, 4, 7) == (4, 3)  # an odd group size on which the released code asserts


def test_shortfall_of_positives_is_filled_with_negatives():
    assert kept_counts(2, 30, 16) == (1, 15)
    assert kept_counts(0, 32, 16) == (0, 16)
    assert kept_counts(3, 15, 16) == (3, 13)


def test_all_positive_group_keeps_g():
    assert kept_counts(32, 0, 16) == (16, 0)


@given(
    st.lists(rollout_fields, max_size=40),
    st.integers(1, 40),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.sampled_from(Mode),
)
def test_outcome_is_consistent(fields, keep, seed, enabled, mode):
    rollouts = build(fields)
    outcome = resample_on_correct(rollouts, keep, seed=seed, group_id="g", enabled=enabled, mode=mode)
    scored = [r for r in rollouts if r.reward is not None]
    assert len(outcome.kept_ids) == len(set(outcome.kept_ids)) == min(keep, len(scored))
    assert [d.trajectory_id for d in outcome.decisions] == [r.trajectory_id for r in rollouts]
    assert tuple(d.trajectory_id for d in outcome.decisions if d.kept) == outcome.kept_ids
    for rollout, decision in zip(rollouts, outcome.decisions, strict=True):
        assert (decision.reason is Reason.UNSCORABLE) == (rollout.reward is None)
        assert decision.kept == decision.reason.value.startswith("kept")
    kept_rewards = {r.reward for r in scored if r.trajectory_id in outcome.kept_ids}
    assert outcome.rejected == (len(kept_rewards) < 2)


@given(
    st.lists(rollout_fields, min_size=2, max_size=20),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
    st.sampled_from(Mode),
)
def test_order_of_rollouts_has_no_influence(fields, keep, shuffler, mode):
    rollouts = build(fields)
    shuffled = list(rollouts)
    shuffler.shuffle(shuffled)
    first = resample_on_correct(rollouts, keep, seed=7, group_id="g", mode=mode)
    assert resample_on_correct(shuffled, keep, seed=7, group_id="g", mode=mode) == first


def test_seed_and_group_id_both_change_the_choice():
    rollouts = group(16, 16)
    by_seed = {resample_on_correct(rollouts, 8, seed=s, group_id="g").kept_ids for s in range(20)}
    by_group = {resample_on_correct(rollouts, 8, seed=0, group_id=f"g{s}").kept_ids for s in range(20)}
    assert len(by_seed) > 15
    assert len(by_group) > 15


def test_unscorable_are_left_out_before_counting():
    rollouts = [*group(2, 2), *(ScoredRollout(f"u{i}", None) for i in range(4))]
    outcome = resample_on_correct(rollouts, 4, seed=0, group_id="g")
    assert outcome.kept_ids == ("n00", "n01", "p00", "p01")
    assert {d.reason for d in outcome.decisions} == {Reason.KEPT_ALL, Reason.UNSCORABLE}


def test_group_of_unscorable_rollouts_only_is_rejected():
    outcome = resample_on_correct([ScoredRollout("a", None)], 4, seed=0, group_id="g")
    assert outcome.kept_ids == ()
    assert outcome.rejected


OK, ERROR, TIMEOUT, PARSE = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT, ToolStatus.PARSE_ERROR


@pytest.mark.parametrize(
    ("statuses", "tags", "turns", "p_err", "p_format"),
    [
        # (what the policy did): equation 4, equation 5
        ((), 1, 1, 0.5, 0.0),  # answers at once
        ((), 0, 1, 0.5, 1.0),  # says nothing that counts
        ((OK,), 1, 2, 0.0, 0.0),  # the clean rollout
        ((OK, OK, OK, ERROR), 1, 5, 0.25, 0.0),
        ((ERROR, TIMEOUT, PARSE), 1, 4, 1.0, 0.0),  # each kind of failure counts as one
        ((ToolStatus.UNKNOWN_TOOL, OK), 1, 2, 0.5, 0.0),
        ((ToolStatus.MEMORY_LIMIT, ToolStatus.OUTPUT_LIMIT, ToolStatus.CRASHED, OK), 1, 5, 0.75, 0.0),
        ((OK, OK), 2, 2, 0.0, 0.5),  # one answer too many in two turns
        ((OK,), 2, 1, 0.0, 1.0),  # two answers in one turn
        ((OK,), 3, 4, 0.0, 0.5),
        ((OK,), 9, 4, 0.0, 1.0),  # never more than 1
        ((OK,), 0, 10, 0.0, 1.0),  # no tag, however many turns
        ((OK, ERROR, ERROR), 6, 10, 2 / 3, 0.5),
    ],
)
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_penalties_of_hand_made_trajectories_are_equations_4_and_5(statuses, tags, turns, p_err, p_format, reward):
    """`tags` counts opening answer tags in what the policy wrote, `turns` its turns, the first included."""
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1])
    calls = tuple(ToolCallRecord(0, "t", "{}", status, "an error, says the text") for status in statuses)
    made = Trajectory("t", "p", "g", 0, ledger, calls, EndReason.ANSWERED, turns, tags)
    (decision,) = resample_on_correct([ScoredRollout.of(made, reward)], 1, seed=0, group_id="g").decisions
    assert (decision.p_err, decision.p_format) == (p_err, p_format)


@pytest.mark.parametrize("reason", [EndReason.INFRASTRUCTURE, EndReason.CANCELLED])
def test_what_the_policy_did_not_end_is_unscorable_whatever_the_reward(reason):
    made = Trajectory("t", "p", "g", 0, TokenLedger(), (), reason, 1, 1)
    assert ScoredRollout.of(made, 0.0).reward is None


@pytest.mark.parametrize("reason", [EndReason.TRUNCATED, EndReason.TURN_LIMIT, EndReason.UNCLOSED_CALL])
def test_what_the_policy_did_to_itself_is_scored(reason):
    made = Trajectory("t", "p", "g", 0, TokenLedger(), (), reason, 1, 1)
    assert ScoredRollout.of(made, 0.0).reward == 0.0


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([], RejectReason.NOTHING_SCORED),
        ([None, None], RejectReason.NOTHING_SCORED),
        ([1.0] * 5, RejectReason.ALL_CORRECT),
        ([0.0] * 5 + [None], RejectReason.ALL_WRONG),
        ([0.5] * 5, RejectReason.EQUAL_REWARDS),
        ([0.0, 1.0], None),
    ],
)
@pytest.mark.parametrize("mode", Mode)
def test_groups_with_nothing_to_learn_from_say_why(rewards, reason, mode):
    rollouts = [ScoredRollout(f"t{i}", reward) for i, reward in enumerate(rewards)]
    outcome = resample_on_correct(rollouts, 4, seed=0, group_id="g", mode=mode)
    assert (outcome.rejected, outcome.reject_reason) == (reason is not None, reason)
    assert outcome.unscorable == rewards.count(None)


def test_a_choice_of_one_leaves_equal_rewards():
    assert resample_on_correct(group(3, 3), 1, seed=0, group_id="g").reject_reason is RejectReason.EQUAL_REWARDS


def test_release_keeps_both_sides_in_proportion():
    assert release_counts(16, 16, 16) == (8, 8)
    assert release_counts(24, 8, 16) == (12, 4)
    assert release_counts(4, 4, 7) == (4, 3)  # an odd size on which the released code stops


def test_release_keeps_a_minimum_of_either_side():
    assert release_counts(30, 2, 16) == (14, 2)
    assert release_counts(1, 31, 16) == (1, 15)
    assert release_counts(31, 1, 16, minimum_negatives=0) == (16, 0)


def test_release_takes_the_least_penalised_positives():
    kept = {
        name
        for seed in range(50)
        for name in resample_on_correct(small_group(8, 8), 8, seed=seed, group_id="g", mode=Mode.RELEASE).kept_ids
        if name.startswith("p")
    }
    assert kept == {"p0", "p4", "p1", "p2", "p5", "p6"}  # penalty 0, then a choice among those with 0.5, never 2


@pytest.mark.parametrize(("calls", "failed", "expected"), [(0, 0, 0.5), (1, 0, 0.0), (4, 1, 0.25), (3, 3, 1.0)])
def test_error_penalty_is_equation_4(calls, failed, expected):
    assert error_penalty(calls, failed) == expected


@pytest.mark.parametrize(
    ("tags", "turns", "expected"),
    [(0, 1, 1.0), (0, 9, 1.0), (1, 1, 0.0), (1, 10, 0.0), (2, 1, 1.0), (2, 4, 0.25), (3, 4, 0.5), (9, 2, 1.0)],
)
def test_format_penalty_is_equation_5(tags, turns, expected):
    assert format_penalty(tags, turns) == expected


def chances(rollouts, keep, mode, epsilon=0.1):
    """Exact probability of each kept subset: every order of drawing positives, every subset of negatives."""
    positives = [r for r in rollouts if r.reward == 1.0]
    negatives = [r for r in rollouts if r.reward == 0.0]
    counts = kept_counts if mode is Mode.PAPER else release_counts
    take_pos, take_neg = counts(len(positives), len(negatives), keep)
    penalty = {
        r.trajectory_id: error_penalty(r.tool_calls, r.failed_tool_calls) + format_penalty(r.answer_tags, r.turns)
        for r in positives
    }
    if mode is Mode.PAPER:
        positive_sets = drawn_in_turn({name: 1 / (value + epsilon) for name, value in penalty.items()}, take_pos)
    else:
        positive_sets = least_first(penalty, take_pos)
    negative_sets = list(itertools.combinations([r.trajectory_id for r in negatives], take_neg))
    return {
        pos | frozenset(neg): probability / len(negative_sets)
        for pos, probability in positive_sets.items()
        for neg in negative_sets
    }


def drawn_in_turn(weight, count):
    """Drawn one after another without replacement, in proportion to the weights left."""
    sets: Counter[frozenset[str]] = Counter()
    for order in itertools.permutations(weight, count):
        left = sum(weight.values())
        probability = 1.0
        for chosen in order:
            probability *= weight[chosen] / left
            left -= weight[chosen]
        sets[frozenset(order)] += probability
    return sets


def least_first(penalty, count):
    """The least penalised, equal ones in random order."""
    sets: Counter[frozenset[str]] = Counter()
    orders = list(itertools.permutations(penalty))
    for order in orders:
        sets[frozenset(sorted(order, key=lambda name: penalty[name])[:count])] += 1 / len(orders)
    return sets


MIXED = [
    ScoredRollout("a", 1.0, 2, 0, 1, 2),  # clean
    ScoredRollout("b", 1.0, 0, 0, 1, 1),  # p_err 0.5
    ScoredRollout("c", 1.0, 4, 1, 2, 4),  # 0.25 + 0.25
    ScoredRollout("d", 1.0, 2, 2, 0, 3),  # 1 + 1
    ScoredRollout("e", 0.0, 1, 0, 1, 1),
    ScoredRollout("f", 0.0, 1, 1, 1, 1),
    ScoredRollout("g", 0.0, 0, 0, 0, 1),
    ScoredRollout("h", 0.0, 3, 0, 1, 2),
]


PENALISED = [(1, 0, 1, 2), (0, 0, 1, 1), (4, 1, 2, 4), (2, 2, 0, 3)]
"""Calls, failed calls, tags and turns of positives: penalties 0, 0.5, 0.5 and 2, so that there are ties."""


def small_group(positives: int, negatives: int) -> list[ScoredRollout]:
    clean = [ScoredRollout(f"p{i}", 1.0, *PENALISED[i % 4]) for i in range(positives)]
    return clean + [ScoredRollout(f"n{i}", 0.0) for i in range(negatives)]


def distance(seen: Counter[frozenset[str]], exact: dict[frozenset[str], float]) -> float:
    """Chi-square of counts against probabilities, in standard deviations above what is expected by chance."""
    draws = sum(seen.values())
    common = [subset for subset, p in exact.items() if p * draws >= 5]
    parts = [(seen[subset], exact[subset] * draws) for subset in common]
    rare = draws - sum(expected for _, expected in parts)
    if rare >= 5:
        parts.append((draws - sum(count for count, _ in parts), rare))
    freedom = max(len(parts) - 1, 1)
    statistic = sum((count - expected) ** 2 / expected for count, expected in parts)
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("size", range(2, 9))
def test_frequencies_of_whole_subsets_match_enumeration(size, mode):
    """Every split into positives and negatives, every number to keep. Seeds are fixed: the outcome never varies."""
    for positives in range(size + 1):
        rollouts = small_group(positives, size - positives)
        for keep in range(1, size):
            exact = chances(rollouts, keep, mode)
            assert math.isclose(sum(exact.values()), 1.0)
            seen = Counter(
                frozenset(resample_on_correct(rollouts, keep, seed=s, group_id="fixed", mode=mode).kept_ids)
                for s in range(400)
            )
            assert set(seen) <= set(exact)
            assert distance(seen, exact) < 5


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("positives", "negatives", "keep"), [(4, 4, 4), (6, 2, 4), (2, 6, 5), (8, 0, 3), (0, 8, 3)])
def test_frequencies_of_many_draws_match_enumeration_closely(positives, negatives, keep, mode):
    rollouts = small_group(positives, negatives)
    draws = 8000
    seen = Counter(
        frozenset(resample_on_correct(rollouts, keep, seed=s, group_id="many", mode=mode).kept_ids)
        for s in range(draws)
    )
    exact = chances(rollouts, keep, mode)
    assert distance(seen, exact) < 4
    assert all(abs(seen[subset] / draws - p) < 0.025 for subset, p in exact.items())


def test_negatives_are_half_of_them_and_positives_weighed_with_epsilon():
    exact = chances(MIXED, 4, Mode.PAPER, epsilon=1.0)
    draws = 8000
    seen = Counter(
        frozenset(resample_on_correct(MIXED, 4, seed=s, group_id="e", epsilon=1.0).kept_ids) for s in range(draws)
    )
    assert distance(seen, exact) < 4
    assert distance(seen, chances(MIXED, 4, Mode.PAPER, epsilon=0.1)) > 20


def test_plain_grpo_choice_is_uniform():
    rollouts = MIXED[:5]
    draws = 10_000
    seen = Counter(resample_on_correct(rollouts, 2, seed=s, group_id="u", enabled=False).kept_ids for s in range(draws))
    assert len(seen) == 10
    assert all(abs(count / draws - 0.1) < 0.015 for count in seen.values())


def test_inclusion_of_the_paper_example():
    """6 clean, 2 at 0.5, 2 at 1.0, 5 places: inclusion is about .74/.18/.10 at epsilon 0.1."""
    clean = [ScoredRollout(f"a{i}", 1.0, 1, 0, 1, 1) for i in range(6)]
    half = [ScoredRollout(f"b{i}", 1.0, 0, 0, 1, 1) for i in range(2)]
    full = [ScoredRollout(f"c{i}", 1.0, 1, 1, 1, 1) for i in range(2)]
    negatives = [ScoredRollout(f"n{i}", 0.0) for i in range(22)]
    counts: Counter[str] = Counter()
    draws = 4000
    for s in range(draws):
        kept = resample_on_correct([*clean, *half, *full, *negatives], 16, seed=s, group_id="g").kept_ids
        counts.update(k[0] for k in kept)
    assert counts["a"] / draws / 6 == pytest.approx(0.74, abs=0.02)
    assert counts["b"] / draws / 2 == pytest.approx(0.18, abs=0.02)
    assert counts["c"] / draws / 2 == pytest.approx(0.10, abs=0.02)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_tiny_epsilon_takes_the_least_penalised_first(seed):
    clean = [ScoredRollout(f"a{i}", 1.0, 1, 0, 1, 1) for i in range(3)]
    bad = [ScoredRollout(f"b{i}", 1.0, 1, 1, 0, 1) for i in range(5)]
    kept = resample_on_correct([*bad, *clean], 3, seed=seed, group_id="g", epsilon=1e-12).kept_ids
    assert kept == ("a0", "a1", "a2")


@pytest.mark.parametrize(
    ("rollouts", "keep", "epsilon"),
    [
        ([ScoredRollout("a", 1.0)], 0, 0.1),
        ([ScoredRollout("a", 1.0)], 1, 0.0),
        ([ScoredRollout("a", 1.0)], 1, math.nan),
        ([ScoredRollout("a", 1.0), ScoredRollout("a", 0.0)], 1, 0.1),
        ([ScoredRollout("a", math.nan)], 1, 0.1),
        ([ScoredRollout("a", 1.0, 1, 2)], 1, 0.1),
        ([ScoredRollout("a", 1.0, answer_tags=-1)], 1, 0.1),
    ],
)
def test_bad_input_is_refused(rollouts, keep, epsilon):
    with pytest.raises(UserInputError):
        resample_on_correct(rollouts, keep, seed=0, group_id="g", epsilon=epsilon)


def test_choice_does_not_depend_on_global_random_state():
    rollouts = group(10, 10)
    random.seed(1)
    first = resample_on_correct(rollouts, 8, seed=3, group_id="g")
    random.seed(2)
    assert resample_on_correct(rollouts, 8, seed=3, group_id="g") == first
