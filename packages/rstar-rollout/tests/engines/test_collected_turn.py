"""A turn put together from pieces."""

from __future__ import annotations

import pytest

from rstar_rollout.engines.base import EngineError, GenerationRequest, NoiseKey
from rstar_rollout.engines.collected_turn import CollectedTurn


def turn(*, log_probs: bool = True) -> CollectedTurn:
    noise = NoiseKey(1, "p", 0, 0)
    asked = GenerationRequest("r", "s", (1,), 5, 1.0, 1.0, 0, frozenset(), noise, log_probs=log_probs)
    return CollectedTurn(asked, "the server", 7)


def test_pieces_come_out_in_order_with_the_reason_of_the_last():
    collected = turn()
    collected.add([1, 2], [-0.1, -0.2], None)
    assert not collected.finished
    collected.add([3], [-0.3], "stop")
    result = collected.result()
    assert (result.token_ids, result.log_probs) == ((1, 2, 3), (-0.1, -0.2, -0.3))
    assert (result.finish_reason, result.weight_version) == ("stop", 7)


def test_an_end_stays_known_when_an_empty_piece_follows():
    collected = turn()
    collected.add([1], [-0.1], "length")
    collected.add([], [], None)
    assert collected.result().finish_reason == "length"


def test_without_an_end_it_was_aborted():
    collected = turn()
    collected.add([1], [-0.1], None)
    assert collected.result().finish_reason == "aborted"


@pytest.mark.parametrize("log_probs", [[], [-0.1], [-0.1] * 3])
def test_log_probs_of_another_number_than_the_ids_are_refused(log_probs: list[float]):
    with pytest.raises(EngineError, match=f"the server returned {len(log_probs)} log-probabilities for 2 tokens"):
        turn().add([1, 2], log_probs, None)


def test_log_probs_that_nobody_wants_are_left_out():
    collected = turn(log_probs=False)
    collected.add([1, 2], [], "stop")
    assert collected.result().log_probs == ()
