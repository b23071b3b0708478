"""The reward function for verl: a custom reward function by package path.

    reward.custom_reward_function.path=pkg://rstar_reward.integrations.verl
    reward.custom_reward_function.name=compute_score

verl itself is not needed to import this. It has no reward for what the infrastructure caused, so by default that is
raised rather than passed on as a wrong answer.
"""

from __future__ import annotations

from typing import Any

from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verify import verify

__all__ = ["compute_score"]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: object = None,
    *,
    verifier: str = "math",
    excluded_score: float | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The score of one response, and the status for verl's metrics.

    Args:
        data_source: name of the data set; not used.
        solution_str: the response. Tool output in `<tool_response>` is not read.
        ground_truth: the reference answer.
        extra_info: what verl knows about the sample; not used.
        verifier: the kind of answer; set it in `reward_kwargs`.
        excluded_score: the score of what belongs in no group. None: raise.
        others: further arguments of verl, not used.

    Raises:
        UserInputError: the reference answer cannot be used and no `excluded_score` is given.
        InfrastructureError: the response could not be judged and no `excluded_score` is given.
    """
    verdict = verify(str(ground_truth), solution_str, verifier=verifier)
    score = verdict.reward if verdict.reward is not None else excluded_score
    if score is None:
        if verdict.status is VerdictStatus.BAD_GOLD:
            raise UserInputError("ground_truth", ground_truth, verdict.reason)
        raise InfrastructureError(f"a response could not be judged: {verdict.reason}")
    return {"score": score, "acc": score, "status": verdict.status.value, "pred": verdict.extracted or ""}
