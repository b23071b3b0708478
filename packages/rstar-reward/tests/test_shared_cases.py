"""The labelled cases that are not shipped: accuracy, and above all no answer paid that should not be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar_reward import verify_many

pytestmark = pytest.mark.shared_data


def rows_of(path: Path) -> list[dict[str, str]]:
    # Some texts contain U+2028, at which splitlines would split.
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def test_labelled_cases(shared: Path) -> None:
    rows = rows_of(shared / "cases" / "reward_cases.jsonl")
    verdicts = verify_many((row["gold"], row["response"]) for row in rows)
    outcomes = [(row["id"], row["expected"], verdict) for row, verdict in zip(rows, verdicts, strict=True)]
    paid_wrongly = [item for item in outcomes if item[2].reward == 1 and not item[1]]
    missed = [item for item in outcomes if item[2].reward != 1 and item[1]]
    print(f"{len(rows)} cases, {len(paid_wrongly)} false positives, {len(missed)} false negatives")
    assert not paid_wrongly
    assert len(missed) <= 4
    assert 1 - len(missed) / len(rows) >= 0.98


@pytest.mark.parametrize("name", ["math500.jsonl", "hmmt25_feb.jsonl"])
def test_reference_answers_verify_against_themselves_and_not_against_a_change(shared: Path, name: str) -> None:
    golds = [row["answer"] for row in rows_of(shared / "data" / name)]
    styled = [gold.replace(r"\frac", r"\dfrac") for gold in golds]
    changed = [f"{gold} + 10^{{-9}}" for gold in golds]
    assert [verdict.reward for verdict in verify_many(pairs(golds, styled))] == [1.0] * len(golds)
    verdicts = verify_many(pairs(golds, changed))
    assert not [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict.reward == 1]


def pairs(golds: list[str], answers: list[str]) -> list[tuple[str, str]]:
    return [(gold, f"\\boxed{{{answer}}}") for gold, answer in zip(golds, answers, strict=True)]
