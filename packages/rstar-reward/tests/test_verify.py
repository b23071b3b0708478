from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from rstar_protos.errors import UserInputError
from rstar_reward import Verdict, VerdictStatus, verify, verify_many

_PAIRS = [
    ("4", "<answer>\\boxed{4}</answer>"),
    ("4", "<answer>\\boxed{5}</answer>"),
    ("\\sqrt{12}", "\\boxed{2\\sqrt{3}}"),
    ("\\sqrt{12}", "\\boxed{3\\sqrt{2}}"),
    ("(1,2)", "\\boxed{(1, 2)}"),
    ("\\frac{\\pi}{4}", "\\boxed{45^\\circ}"),
    ("x<3", "\\boxed{3>x}"),
    ("4", "no answer"),
]
_REWARDS = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def rewards() -> list[float | None]:
    return [verify(gold, response).reward for gold, response in _PAIRS]


def test_verdicts_from_the_main_thread() -> None:
    assert rewards() == _REWARDS


def test_the_same_verdicts_from_many_threads() -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: rewards(), range(16))) == [_REWARDS] * 16


async def test_the_same_verdicts_from_asyncio() -> None:
    results = await asyncio.gather(*(asyncio.to_thread(rewards) for _ in range(4)))
    assert results == [_REWARDS] * 4


def test_the_same_verdicts_in_a_forked_process() -> None:
    rewards()
    with multiprocessing.get_context("fork").Pool(1) as process:
        assert process.apply(rewards) == _REWARDS


def test_the_same_verdicts_in_one_call() -> None:
    assert [verdict.reward for verdict in verify_many(_PAIRS)] == _REWARDS


def test_a_program_that_verifies_ends_by_itself() -> None:
    program = "from rstar_reward import verify; print(verify('\\\\sqrt{8}', '\\\\boxed{2\\\\sqrt2}').reward)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=800, check=True)
    assert result.stdout == "1.0\n"


@pytest.mark.parametrize(
    ("status", "reward"),
    [
        (VerdictStatus.CORRECT, 1.0),
        (VerdictStatus.WRONG, 0.0),
        (VerdictStatus.NO_ANSWER, 0.0),
        (VerdictStatus.HEDGED, 0.0),
        (VerdictStatus.TOO_COMPLEX, 0.0),
        (VerdictStatus.TIMEOUT, 0.0),
        (VerdictStatus.BAD_GOLD, None),
        (VerdictStatus.UNSCORABLE, None),
    ],
)
def test_what_each_status_is_worth(status: VerdictStatus, reward: float | None) -> None:
    assert Verdict(status, "").reward == reward


def test_an_empty_reference_is_a_bad_gold() -> None:
    assert verify(" ", "\\boxed{4}").status is VerdictStatus.BAD_GOLD


def test_the_exact_verifier_compares_text() -> None:
    assert verify("New York", "<answer>new  york</answer>", verifier="exact").reward == 1
    assert verify("4", "<answer>4.0</answer>", verifier="exact").reward == 0


def test_an_unknown_verifier_is_refused() -> None:
    with pytest.raises(UserInputError, match="verifier: 'chess'"):
        verify("4", "\\boxed{4}", verifier="chess")
