"""Gold answers are tried on the reward service before anything is sampled.

One that the service cannot read would leave every rollout of its problem unscored, hours into a run. Reached by
contract only, so it holds for an embedded service as for one elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import grpc.aio

from rstar_eval.problems import EvalProblem
from rstar_protos.errors import UserInputError
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_protos.service import call_with_retry

__all__ = ["UnusableGoldError", "check_golds"]

_GOLDS_PER_CALL = 500
_SHOWN_CHARACTERS = 60
_MATHEMATICAL = r"a number or a mathematical answer in LaTeX or plain text, such as 42, 3/4 or \frac{\sqrt{2}}{2}"


class UnusableGoldError(UserInputError):
    """A gold answer that the reward service cannot read."""


async def check_golds(
    channel: grpc.aio.Channel,
    problems: Sequence[EvalProblem],
    *,
    verifier: str = "",
    patience_s: float = 60.0,
    on_checked: Callable[[int, int], None] | None = None,
) -> None:
    """Has the reward service read every gold answer once.

    Args:
        channel: to the service.
        problems: with their answers.
        verifier: of the service; "" is its default.
        patience_s: how long an unreachable service is waited for, seconds.
        on_checked: told (done, total) of the different answers.

    Raises:
        UnusableGoldError: naming place and id of the first problem whose answer is unusable, the answer and why, and
            how many more there are.
        ServiceUnavailableError: the service did not answer within the patience.
        grpc.aio.AioRpcError: it refused the call, for example for an unknown verifier.
    """
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    different = list(dict.fromkeys(problem.answer for problem in problems))
    reasons: dict[str, str] = {}
    done = 0
    for golds in _parts(different):
        request = reward_pb2.CheckGoldRequest(golds=golds, verifier=verifier)
        answer = await call_with_retry(stub.CheckGold, request, patience_s=patience_s)
        reasons.update((golds[found.index], found.reason) for found in answer.bad)
        done += len(golds)
        if on_checked:
            on_checked(done, len(different))
    unusable = [problem for problem in problems if problem.answer in reasons]
    if unusable:
        first, more = unusable[0], len(unusable) - 1
        place = f"{first.where}, id {first.problem_id}" if first.where else f"id {first.problem_id}"
        accepted = _MATHEMATICAL if verifier in ("", "math") else f'what the verifier "{verifier}" takes'
        told = f"{accepted} ({reasons[first.answer]})" + (f" ({more} more like it)" if more else "")
        raise UnusableGoldError(f"gold answer of {place}", _short(first.answer), told)


def _parts(golds: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(golds), _GOLDS_PER_CALL):
        yield list(golds[start : start + _GOLDS_PER_CALL])


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
