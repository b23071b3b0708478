from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_reward import verify_many
from rstar_reward.bench.workloads import WORKLOADS, pairs_of


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_pairs_are_distinct_half_right_and_the_same_for_the_same_seed(workload: str) -> None:
    pairs = pairs_of(workload, 60, 7)
    assert len(set(pairs)) == 60
    assert sum(pair.right for pair in pairs) == 30
    assert pairs == pairs_of(workload, 60, 7)
    assert not set(pairs) & set(pairs_of(workload, 60, 8))


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_the_labels_are_right(workload: str) -> None:
    pairs = pairs_of(workload, 240 if workload == "hard" else 40, 3)
    verdicts = verify_many((pair.gold, pair.response) for pair in pairs)
    assert [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.reward != float(pair.right)] == []


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(UserInputError, match="workload: 'chess'"):
        pairs_of("chess", 1, 0)
