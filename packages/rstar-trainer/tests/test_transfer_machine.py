"""What a machine lacks for a way of weights is told before anything starts."""

from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.plan import make_plan
from rstar_trainer.recipe import load_recipe
from rstar_trainer.transfer_machine import Machine, machine_problem, transfer_obstacles

LAPTOP = Machine()
TWO_GPUS = Machine((0, 1), 2)
VLLM = "engine.type=vllm"


def problem(machine: Machine, *settings: str) -> str:
    found = machine_problem(load_recipe("quickstart", [VLLM, *settings]), machine)
    return "" if found is None else str(found)


@pytest.mark.parametrize(
    ("machine", "settings"),
    [
        (LAPTOP, ()),
        (LAPTOP, ("engine.transfer=shared_memory",)),
        (TWO_GPUS, ("engine.transfer=nccl", "engine.gpu=1")),
        (TWO_GPUS, ("engine.transfer=ipc", "engine.gpu=0", "engine.sleep_level=2")),
        (Machine(None, 1), ("engine.transfer=ipc", "engine.gpu=3")),  # names that say no number
        (TWO_GPUS, ("engine.transfer=nccl", "services.rollout.endpoint=grpc://127.0.0.1:7103")),
        (LAPTOP, ("services.rollout.endpoint=grpc://127.0.0.1:7103", "engine.sleep_level=1")),
        (
            LAPTOP,
            (
                "engine.transfer=nccl",
                "services.rollout.endpoint=grpc://127.0.0.1:7103",
                "learner.backend=deepspeed",
                "learner.gpus_per_rank=1",
                "learner.ray_address=auto",
            ),
        ),
    ],
)
def test_a_machine_that_has_everything_passes(machine: Machine, settings: tuple[str, ...]) -> None:
    assert problem(machine, *settings) == ""


@pytest.mark.parametrize(
    ("machine", "settings", "said"),
    [
        (LAPTOP, ("engine.transfer=ipc",), ("engine.transfer: 'ipc'", "files", "no GPU")),
        (LAPTOP, ("engine.transfer=nccl", "engine.gpu=1"), ("engine.transfer: 'nccl'", "no GPU")),
        (Machine(vllm=False), ("engine.transfer=shared_memory",), ("shared_memory", "vLLM is not installed", "pip")),
        (Machine(shared_files=False), ("engine.transfer=shared_memory",), ("shared_memory", "memfd")),
        (TWO_GPUS, ("engine.transfer=nccl", "engine.gpu=0"), ("engine.gpu: 0", "another GPU than the learner's (0)")),
        (TWO_GPUS, ("engine.transfer=nccl", "engine.gpu=2"), ("engine.gpu: 2", "visible here (0, 1)")),
        (TWO_GPUS, ("engine.transfer=ipc", "engine.gpu=1"), ("engine.gpu: 1", "a GPU of the learner (0)")),
        (
            TWO_GPUS,
            (
                "engine.transfer=nccl",
                "engine.gpu=1",
                "learner.backend=deepspeed",
                "learner.ranks=2",
                "learner.gpus_per_rank=1",
            ),
            ("engine.gpu: 1", "another GPU than the learner's (0, 1)"),
        ),
        (LAPTOP, ("engine.sleep_level=1",), ("engine.sleep_level: 1", "0 on a machine without GPUs")),
    ],
)
def test_what_a_machine_lacks_is_named(machine: Machine, settings: tuple[str, ...], said: tuple[str, ...]) -> None:
    found = problem(machine, *settings)
    assert all(part in found for part in said), found


def test_a_plan_is_refused_where_its_weights_could_not_arrive() -> None:
    if Machine.this().gpu_count:
        recipe = load_recipe("quickstart", [VLLM, "engine.transfer=nccl", "engine.gpu=99"])
    else:
        recipe = load_recipe("quickstart", [VLLM, "engine.transfer=ipc"])
    with pytest.raises(UserInputError, match=r"engine\.(transfer|gpu)"):
        make_plan(recipe)


def test_files_are_possible_anywhere() -> None:
    nothing = Machine(vllm=False, shared_files=False)
    assert [way for way, why in transfer_obstacles(nothing).items() if not why] == ["files"]


def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f1b,3")
    machine = Machine.this()
    assert machine.gpus is None or len(machine.gpus) == machine.gpu_count
