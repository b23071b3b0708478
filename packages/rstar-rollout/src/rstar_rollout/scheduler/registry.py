"""The policies that a service can be started with, by name."""

from __future__ import annotations

from collections.abc import Callable

from rstar_protos.errors import UserInputError
from rstar_rollout.scheduler.longest_first import LongestFirst
from rstar_rollout.scheduler.policies import KvBalanced, LeastInFlight, Policy, StaticSplit

__all__ = ["POLICIES", "make_policy"]

POLICIES: dict[str, Callable[[], Policy]] = {
    "kv_balanced": KvBalanced,
    "kv_learned": LongestFirst,
    "least_in_flight": LeastInFlight,
    "static": StaticSplit,
}
"""Each with its defaults."""


def make_policy(name: str) -> Policy:
    """A policy by name.

    Raises:
        UserInputError: there is none of that name.
    """
    if name not in POLICIES:
        raise UserInputError("--scheduler", name, "one of " + ", ".join(POLICIES))
    return POLICIES[name]()
