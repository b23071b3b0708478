"""Gold answers against the real verifier, over its contract."""

import grpc
import pytest

from rstar_eval.gold_check import UnusableGoldError, check_golds
from rstar_eval.problems import EvalProblem
from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.service import open_channel


@pytest.fixture
async def reward(embedded):
    channel = open_channel(embedded["reward"])
    yield channel
    await channel.close()


def numbered(*answers):
    return [EvalProblem(f"p{n}", "text", answer, where=f"f.jsonl, line {n}") for n, answer in enumerate(answers, 1)]


async def test_every_different_answer_is_read_once(reward):
    told = []
    answers = [str(n % 1100) for n in range(2000)]
    await check_golds(reward, numbered(*answers), on_checked=lambda *counts: told.append(counts))
    assert told == [(500, 1100), (1000, 1100), (1100, 1100)]


async def test_the_first_unusable_answer_is_named_with_place_value_reason_and_what_would_do(reward):
    with pytest.raises(UnusableGoldError) as caught:
        await check_golds(reward, numbered("4", "((", "1/2", " ", "(("))
    text = str(caught.value)
    assert text.startswith("gold answer of f.jsonl, line 2, id p2: '((' is not usable; accepted: ")
    assert "such as 42" in text
    assert text.endswith("(2 more like it)")


async def test_a_long_answer_is_cut_in_the_message(reward):
    with pytest.raises(UnusableGoldError) as caught:
        await check_golds(reward, numbered("(" * 5000))
    assert len(str(caught.value)) < 300


async def test_an_answer_in_a_later_part_is_found(reward):
    with pytest.raises(UnusableGoldError, match="line 1201"):
        await check_golds(reward, numbered(*map(str, range(1200)), "(("))


async def test_what_another_verifier_takes_is_said(reward):
    await check_golds(reward, numbered("A"), verifier="choice")
    with pytest.raises(UnusableGoldError, match='the verifier "choice"'):
        await check_golds(reward, numbered("42"), verifier="choice")


async def test_an_unknown_verifier_is_refused_by_the_service(reward):
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
        await check_golds(reward, numbered("1"), verifier="absent")


async def test_a_service_that_stays_away_is_an_infrastructure_fault(tmp_path):
    channel = open_channel(f"unix:{tmp_path}/absent.sock")
    with pytest.raises(ServiceUnavailableError):
        await check_golds(channel, numbered("1"), patience_s=0.2)
    await channel.close()
