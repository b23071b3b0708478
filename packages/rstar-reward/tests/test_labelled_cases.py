"""Cases of our own over the kinds of the shared ones, labelled by hand before the verifier saw them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rstar_reward import Verdict, verify_many

ROWS = [
    json.loads(line) for line in (Path(__file__).parent / "labelled_cases.jsonl").read_text("utf-8").split("\n") if line
]
KINDS = sorted({row["kind"] for row in ROWS})


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return verify_many((row["gold"], row["response"]) for row in ROWS)


def test_the_cases_cover_all_kinds_in_both_directions() -> None:
    assert len(ROWS) >= 150
    assert len(KINDS) == 37
    assert min(Counter(row["kind"] for row in ROWS).values()) >= 4
    assert len({row["id"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_verdict_is_the_one_of_a_careful_person(kind: str, verdicts: list[Verdict]) -> None:
    mine = [(row, verdict) for row, verdict in zip(ROWS, verdicts, strict=True) if row["kind"] == kind]
    assert [row["id"] for row, verdict in mine if verdict.reward == 1 and not row["expected"]] == []
    assert [row["id"] for row, verdict in mine if verdict.reward != 1 and row["expected"]] == []
