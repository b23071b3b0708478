"""Resample-on-Correct: counts, penalties, seeds, and frequencies against exact enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_rollout.roc import (
    Reason,
    ScoredRollout,
    error_penalty,
    format_penalty,
    kept_counts,
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


def test_counts_are_legal_for_every_group_of_up_to_40():
    for positives in range(41):
        for negatives in range(41 - positives):
            for keep in range(1, 41):
                kept_pos, kept_neg = kept_counts(positives, negatives, keep)
                assert 0 <= kept_pos <= positives
                assert 0 <= kept_neg <= negatives
                assert kept_pos + kept_neg == min(keep, positives + negatives)


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


@given(st.lists(rollout_fields, max_size=40), st.integers(1, 40), st.integers(0, 2**64 - 1), st.booleans())
def test_outcome_is_consistent(fields, keep, seed, enabled):
    rollouts = build(fields)
    outcome = resample_on_correct(rollouts, keep, seed=seed, group_id="g", enabled=enabled)
    scored = [r for r in rollouts if r.reward is not None]
    assert len(outcome.kept_ids) == len(set(outcome.kept_ids)) == min(keep, len(scored))
    assert [d.trajectory_id for d in outcome.decisions] == [r.trajectory_id for r in rollouts]
    assert tuple(d.trajectory_id for d in outcome.decisions if d.kept) == outcome.kept_ids
    for rollout, decision in zip(rollouts, outcome.decisions, strict=True):
        assert (decision.reason is Reason.UNSCORABLE) == (rollout.reward is None)
        assert decision.kept == decision.reason.value.startswith("kept")
    kept_rewards = {r.reward for r in scored if r.trajectory_id in outcome.kept_ids}
    assert outcome.rejected == (len(kept_rewards) < 2)


@given(st.lists(rollout_fields, min_size=2, max_size=20), st.integers(1, 20), st.randoms(use_true_random=False))
def test_order_of_rollouts_has_no_influence(fields, keep, shuffler):
    rollouts = build(fields)
    shuffled = list(rollouts)
    shuffler.shuffle(shuffled)
    first = resample_on_correct(rollouts, keep, seed=7, group_id="g")
    assert resample_on_correct(shuffled, keep, seed=7, group_id="g") == first


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


@pytest.mark.parametrize(("calls", "failed", "expected"), [(0, 0, 0.5), (1, 0, 0.0), (4, 1, 0.25), (3, 3, 1.0)])
def test_error_penalty_is_equation_4(calls, failed, expected):
    assert error_penalty(calls, failed) == expected


@pytest.mark.parametrize(
    ("tags", "turns", "expected"),
    [(0, 1, 1.0), (0, 9, 1.0), (1, 1, 0.0), (1, 10, 0.0), (2, 1, 1.0), (2, 4, 0.25), (3, 4, 0.5), (9, 2, 1.0)],
)
def test_format_penalty_is_equation_5(tags, turns, expected):
    assert format_penalty(tags, turns) == expected


def exact_subset_probabilities(rollouts, keep, epsilon):
    """Enumerate every ordered draw of positives and every subset of negatives."""
    positives = [r for r in rollouts if r.reward == 1.0]
    negatives = [r for r in rollouts if r.reward == 0.0]
    take_pos, take_neg = kept_counts(len(positives), len(negatives), keep)
    weight = {
        r.trajectory_id: 1
        / (error_penalty(r.tool_calls, r.failed_tool_calls) + format_penalty(r.answer_tags, r.turns) + epsilon)
        for r in positives
    }
    positive_sets: Counter[frozenset[str]] = Counter()
    for order in itertools.permutations(weight, take_pos):
        left = sum(weight.values())
        probability = 1.0
        for chosen in order:
            probability *= weight[chosen] / left
            left -= weight[chosen]
        positive_sets[frozenset(order)] += probability
    negative_sets = list(itertools.combinations([r.trajectory_id for r in negatives], take_neg))
    return {
        pos | frozenset(neg): probability / len(negative_sets)
        for pos, probability in positive_sets.items()
        for neg in negative_sets
    }


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


@pytest.mark.parametrize(
    ("rollouts", "keep", "epsilon"),
    [
        (MIXED, 4, 0.1),
        (MIXED, 5, 1.0),
        (MIXED[:6], 4, 0.1),
        (MIXED[2:], 4, 0.5),
        (MIXED[3:], 4, 0.1),
        (MIXED[:4], 2, 0.1),
        (MIXED[4:], 3, 0.1),
    ],
)
def test_frequencies_of_whole_subsets_match_enumeration(rollouts, keep, epsilon):
    exact = exact_subset_probabilities(rollouts, keep, epsilon)
    assert math.isclose(sum(exact.values()), 1.0)
    draws = 20_000
    seen = Counter(
        frozenset(resample_on_correct(rollouts, keep, seed=s, group_id="fixed", epsilon=epsilon).kept_ids)
        for s in range(draws)
    )
    assert set(seen) <= set(exact)
    expected = {subset: p * draws for subset, p in exact.items()}
    common = [s for s in expected if expected[s] >= 5]
    statistic = sum((seen[s] - expected[s]) ** 2 / expected[s] for s in common)
    rare = sum(expected[s] for s in expected if expected[s] < 5)
    if rare >= 5:
        statistic += (sum(seen[s] for s in expected if expected[s] < 5) - rare) ** 2 / rare
    freedom = max(len(common) - (rare < 5), 1)
    # 4.5 standard deviations of a chi-square; the seeds are fixed, so the outcome never varies.
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 8


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
