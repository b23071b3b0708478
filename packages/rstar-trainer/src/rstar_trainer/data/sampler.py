"""The order in which training problems are drawn: a function of seed and epoch, so that a resume is exact."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_trainer.data.fingerprint import fingerprint
from rstar_trainer.data.problem import TrainProblem


class ProblemSampler:
    """Draws every problem once per epoch, in an order that depends on (seed, epoch) only.

    A draw never holds a problem twice, also where it crosses the border of two epochs: what the
    new epoch would repeat is put off to the next draw.

    Args:
        problems: at least one problem, with ids that differ.
        seed: seed of the order.
    """

    def __init__(self, problems: Sequence[TrainProblem], seed: int) -> None:
        if not problems:
            raise ValueError("a sampler needs at least one problem")
        self._problems = tuple(problems)
        self._seed = seed
        self._fingerprint = fingerprint(self._problems)
        self._epoch = 0
        self._position = 0  # in the order of the epoch
        self._deferred: list[int] = []  # put off within the epoch, served first
        self._order = self._order_of(0)

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def epoch(self) -> int:
        """The epoch that the last problem was drawn in, from 0."""
        return self._epoch

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the problems."""
        return self._fingerprint

    def draw(self, count: int) -> list[TrainProblem]:
        """The next `count` problems, all different.

        Raises:
            UserInputError: more problems than there are.
        """
        if not 0 <= count <= len(self):
            accepted = f"at most the {len(self)} training problems of the stage"
            raise UserInputError("problems_per_step", count, accepted)
        drawn: dict[int, None] = {}
        repeated: list[int] = []
        while len(drawn) < count:
            index = self._next()
            if index in drawn:
                repeated.append(index)
            else:
                drawn[index] = None
        self._deferred = repeated + self._deferred
        return [self._problems[index] for index in drawn]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state; `load_state_dict` of a sampler over the same problems goes on from it."""
        return {
            "seed": self._seed,
            "fingerprint": self._fingerprint,
            "epoch": self._epoch,
            "position": self._position,
            "deferred": list(self._deferred),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            UserInputError: the state belongs to other problems or another seed.
        """
        if state["fingerprint"] != self._fingerprint:
            raise UserInputError(
                "data.train",
                self._fingerprint,
                f"the problems that the checkpoint was written with (SHA-256 {state['fingerprint']}), or a new run",
            )
        if state["seed"] != self._seed:
            raise UserInputError("seed", self._seed, f"seed {state['seed']}, with which the checkpoint was written")
        self._epoch = int(state["epoch"])
        self._position = int(state["position"])
        self._deferred = [int(index) for index in state["deferred"]]
        self._order = self._order_of(self._epoch)

    def _next(self) -> int:
        if self._deferred:
            return self._deferred.pop(0)
        if self._position == len(self._order):
            self._epoch += 1
            self._position = 0
            self._order = self._order_of(self._epoch)
        self._position += 1
        return self._order[self._position - 1]

    def _order_of(self, epoch: int) -> list[int]:
        # A text seed is hashed with SHA-512, so neighbouring seeds and epochs give unrelated orders.
        order = list(range(len(self._problems)))
        random.Random(f"order {self._seed} {epoch}").shuffle(order)  # noqa: S311 - not for security
        return order
