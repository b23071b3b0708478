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
    assert not missed
