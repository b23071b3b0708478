"""Judges the declared answer of a rollout, behind gRPC.

`verify` judges in this process's own worker pool, `RewardClient` asks a service (`rstar-reward serve`).
"""

from typing import TYPE_CHECKING, Any

from rstar_reward.transcript import Segment, SegmentKind
from rstar_reward.verdict import Verdict, VerdictStatus
from rstar_reward.verifiers import Judgement, Verifier, verifier_names
from rstar_reward.verify import check_golds, verify, verify_many

if TYPE_CHECKING:
    from rstar_reward.client import RewardClient, ScoreJob

__all__ = [
    "Judgement",
    "RewardClient",
    "ScoreJob",
    "Segment",
    "SegmentKind",
    "Verdict",
    "VerdictStatus",
    "Verifier",
    "check_golds",
    "verifier_names",
    "verify",
    "verify_many",
]


def __getattr__(name: str) -> Any:
    # Late, so that worker processes, which import this package too, do without gRPC.
    if name in ("RewardClient", "ScoreJob"):
        from rstar_reward import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
