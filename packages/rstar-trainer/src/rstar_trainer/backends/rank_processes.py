"""A learner's ranks as Ray actors: started together, called together, and ended together when one of them is lost.

A rank that is gone leaves the others waiting in a collective that cannot end. So the first fault that any rank tells
of ends all of them at once, and the caller learns that the learner is lost; it starts another from a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rstar_protos.errors import UserInputError
from rstar_trainer.learner_faults import LearnerLostError
from rstar_trainer.recipe import LearnerSettings

__all__ = ["RankProcesses"]

_START_SECONDS = 900.0
_RAY_STARTS = 4
_OBJECT_STORE_BYTES = 512 * 1024 * 1024


class RankProcesses:
    """The ranks of one learner.

    Args:
        settings: how many, what each needs, which Ray.
        rank_settings: given to every rank, see `zero_rank.RankSettings`.

    Raises:
        UserInputError: Ray cannot be reached, or no node has room for a rank.
        LearnerLostError: a rank did not start.
    """

    def __init__(self, settings: LearnerSettings, rank_settings: Any) -> None:
        self._settings = settings
        self._own_ray = _connect(settings)
        self._group: PlacementGroup | None = None
        self._ranks: list[Any] = []
        try:
            self._start(rank_settings)
        except BaseException:
            self.end()
            raise

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of all ranks at once.

        Returns:
            Their answers, by rank.

        Raises:
            LearnerLostError: a rank died, raised, or did not answer in time; all have been ended.
        """
        # One copy in the object store, however many ranks read it.
        shared = [ray.put(argument) for argument in arguments]
        return self._wait([getattr(rank, method).remote(*shared) for rank in self._ranks], method)

    def end(self) -> None:
        """Ends all ranks, and Ray when it was started for them."""
        for rank in self._ranks:
            with contextlib.suppress(Exception):
                ray.kill(rank)
        self._ranks = []
        if self._group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self._group)
            self._group = None
        if self._own_ray:
            self._own_ray = False
            ray.shutdown()

    def _start(self, rank_settings: Any) -> None:
        settings = self._settings
        bundle = {"CPU": float(settings.cpus_per_rank)}
        if settings.gpus_per_rank:
            bundle["GPU"] = float(settings.gpus_per_rank)
        _check_room(bundle, settings.ranks)
        self._group = placement_group([bundle] * settings.ranks, strategy="PACK")
        ready, _ = ray.wait([self._group.ready()], timeout=settings.patience_seconds)
        if not ready:
            raise UserInputError(
                "learner.ranks", settings.ranks, f"free resources for each: {bundle}; others hold what there is"
            )
        actor = _actor_class()
        for number in range(settings.ranks):
            bundle_place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            self._ranks.append(
                actor.options(
                    num_cpus=settings.cpus_per_rank,
                    num_gpus=settings.gpus_per_rank,
                    scheduling_strategy=bundle_place,
                    max_restarts=0,
                    runtime_env={"env_vars": _environment(settings, number)},
                ).remote()
            )
        meeting = settings.ranks, settings.patience_seconds
        place = self._ranks[0].meeting_place.remote(*meeting)
        address, port = self._wait([place], "the start of rank 0", _START_SECONDS)[0]
        starts = [rank.begin.remote(rank_settings, address, port, *meeting) for rank in self._ranks]
        self._wait(starts, "the start of the ranks", _START_SECONDS)

    def _wait(self, answers: Sequence[Any], what: str, seconds: float | None = None) -> list[Any]:
        give_up = time.monotonic() + (seconds or self._settings.patience_seconds)
        waiting = list(answers)
        try:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=max(0.0, give_up - time.monotonic()))
                if not done:
                    number = answers.index(waiting[0])
                    raise LearnerLostError(f"rank {number} did not answer in time ({what})")
                for answer in done:
                    _raise_fault(answer, answers.index(answer), what)
            return list(ray.get(list(answers)))
        except LearnerLostError:
            self.end()
            raise


def _raise_fault(answer: Any, rank: int, what: str) -> None:
    """Turns what Ray raises for an answer into this package's error; what the rank's own code refuses stays as it is.

    Raises:
        LearnerLostError: the rank's process died, or its work failed.
        UserInputError, ValueError: the rank refused its input.
    """
    try:
        ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserInputError | ValueError):
            raise cause from None
        reason = str(cause).strip().splitlines()[:1] or [type(cause).__name__]
        raise LearnerLostError(f"rank {rank} failed ({what}): {type(cause).__name__}: {reason[0]}") from error
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise LearnerLostError(f"rank {rank} died ({what}): {reason[0]}") from error


def _connect(settings: LearnerSettings) -> bool:
    """Connects to Ray; whether one was started for it."""
    if ray.is_initialized():
        return False
    if settings.ray_address == "local":
        _start_ray(settings)
        return True
    try:
        ray.init(address=settings.ray_address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UserInputError("learner.ray_address", settings.ray_address, f"a Ray that runs ({reason[0]})") from error
    return True


def _start_ray(settings: LearnerSettings) -> None:
    """A Ray of its own. It gives up on itself after 30 seconds, which a busy machine may need: it is asked again.

    Raises:
        LearnerLostError: it did not start.
    """
    # Ray's workers step back behind everything else on the machine, and a step waits for the slowest of its ranks.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # It ends workers when the machine's memory is nearly full, whoever uses it.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for attempt in range(_RAY_STARTS):
        try:
            ray.init(
                address="local",
                num_cpus=settings.ranks * settings.cpus_per_rank,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                configure_logging=False,
            )
            return
        except Exception as error:  # Ray raises plain exceptions here
            with contextlib.suppress(Exception):
                ray.shutdown()
            if attempt + 1 == _RAY_STARTS:
                reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
                raise LearnerLostError(f"Ray did not start on this machine: {reason[0]}") from error


def _check_room(bundle: dict[str, float], ranks: int) -> None:
    """Asked for before waiting: a bundle that no node can hold would wait for ever.

    Raises:
        UserInputError: naming the resource that is missing.
    """
    # Ray leaves it untyped.
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    for name, amount in bundle.items():
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if largest < amount:
            raise UserInputError(
                f"learner.{name.lower()}s_per_rank", amount, f"no more than a node has: {largest:g} {name}"
            )
    fitting = sum(min(int(node.get(name, 0.0) // amount) for name, amount in bundle.items()) for node in nodes)
    if fitting < ranks:
        raise UserInputError("learner.ranks", ranks, f"no more than fit on the {len(nodes)} nodes of Ray: {fitting}")


def _environment(settings: LearnerSettings, number: int) -> dict[str, str]:
    environment = {
        "RANK": str(number),
        "WORLD_SIZE": str(settings.ranks),
        # Ray shows each rank its own GPU alone.
        "LOCAL_RANK": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(settings.cpus_per_rank)),
    }
    if not settings.gpus_per_rank:
        environment.update({"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""})
    return environment


def _actor_class() -> Any:
    @ray.remote
    class RankActor:
        """A `ZeroRank` in a process of its own."""

        def meeting_place(self, ranks: int, seconds: float) -> tuple[str, int]:
            """Opens the store that all ranks meet at; address of this node, and its port."""
            from rstar_trainer.backends.meeting import open_meeting

            address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # as above
            self._store = open_meeting(address, ranks, seconds)
            return address, self._store.port

        def begin(self, rank_settings: Any, address: str, port: int, ranks: int, seconds: float) -> None:
            # DeepSpeed wants them set, also where it is given a store.
            os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
            from rstar_trainer.backends.meeting import join_meeting
            from rstar_trainer.backends.zero_rank import ZeroRank

            if os.environ["RANK"] != "0":
                self._store = join_meeting(address, port, ranks, seconds)
            self._rank = ZeroRank(rank_settings, self._store)

        def supervised_update(self, *arguments: Any) -> Any:
            return self._rank.supervised_update(*arguments)

        def policy_update(self, *arguments: Any) -> Any:
            return self._rank.policy_update(*arguments)

        def reset_optimizer(self) -> None:
            self._rank.reset_optimizer()

        def write_weights(self, folder: Path, version: int) -> Any:
            return self._rank.write_weights(folder, version)

        def meet_engines(self, target: Any, version: int) -> str:
            return self._rank.meet_engines(target, version)

        def send_weights(self) -> Any:
            return self._rank.send_weights()

        def save_pretrained(self, folder: Path) -> None:
            self._rank.save_pretrained(folder)

        def save_shards(self, folder: Path) -> None:
            self._rank.save_shards(folder)

        def load_shards(self, folder: Path) -> None:
            self._rank.load_shards(folder)

        def process_id(self) -> int:
            return self._rank.process_id()

    return RankActor
