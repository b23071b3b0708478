"""Ways of weights that cannot work with where engine and learner are."""

from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import load_recipe

VLLM = "engine.type=vllm"
REMOTE = "services.rollout.endpoint=grpc://127.0.0.1:7103"
RANKS = ("learner.backend=deepspeed", "learner.ranks=2")


def test_weights_come_by_files_unless_the_recipe_says_otherwise() -> None:
    recipe = load_recipe()
    assert recipe.engine.transfer == "files"
    assert recipe.engine.sleep_level == 0


@pytest.mark.parametrize(
    "settings",
    [
        ("engine.transfer=shared_memory", VLLM),
        ("engine.transfer=shared_memory", VLLM, "services.rollout.endpoint=unix:/run/rollout.sock"),
        ("engine.transfer=shared_memory", VLLM, *RANKS),
        ("engine.transfer=ipc", VLLM, "engine.sleep_level=2"),
        ("engine.transfer=ipc", VLLM, *RANKS, "learner.gpus_per_rank=1"),
        ("engine.transfer=nccl", VLLM, "engine.gpu=1"),
        ("engine.transfer=nccl", VLLM, REMOTE),
        ("engine.transfer=nccl", VLLM, REMOTE, *RANKS, "learner.gpus_per_rank=1", "learner.ray_address=auto"),
        ("engine.sleep_level=1",),
        ("engine.sleep_level=2", VLLM),
    ],
)
def test_what_goes_together_is_accepted(settings: tuple[str, ...]) -> None:
    load_recipe("quickstart", settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("engine.transfer=nccl",),
            r'engine\.transfer: should be "files" with engine\.type = "transformers", not "nccl"',
        ),
        (("engine.transfer=carrier_pigeon", VLLM), r"engine\.transfer: 'carrier_pigeon' .*'shared_memory'"),
        (("engine.transfer=ipc", VLLM, REMOTE), r'engine\.transfer: should be "files" or "nccl" .* not "ipc"'),
        (("engine.transfer=shared_memory", VLLM, REMOTE), r'should be "files" or "nccl" .* not "shared_memory"'),
        (("engine.transfer=nccl", VLLM), r"engine\.gpu: should be a GPU that is not the learner's .* not none"),
        (
            ("engine.transfer=shared_memory", VLLM, "engine.weights_dir=/dev/shm"),
            r'engine\.weights_dir: should be none .* not "/dev/shm"',
        ),
        (("engine.transfer=ipc", VLLM, *RANKS), r"learner\.gpus_per_rank: should be more than 0 .* not 0"),
        (
            ("engine.transfer=shared_memory", VLLM, *RANKS, "learner.ray_address=auto"),
            r'learner\.ray_address: should be "local" .* not "auto"',
        ),
        (("engine.sleep_level=3", VLLM), r"engine\.sleep_level: .*3"),
        (("engine.sleep_level=2",), r"engine\.sleep_level: should be 0 or 1 .* not 2"),
        (
            ("engine.transfer=nccl", VLLM, "engine.gpu=1", "engine.sleep_level=1"),
            r'engine\.sleep_level: should be 0 with engine\.transfer = "nccl", not 1',
        ),
        (("engine.gpu=1",), r"engine\.gpu: should be none .* not 1"),
        (("engine.gpu=1", VLLM, REMOTE), r"engine\.gpu: should be none .* not 1"),
    ],
)
def test_what_cannot_work_is_refused_with_field_and_value(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserInputError, match=said) as caught:
        load_recipe("quickstart", settings)
    assert "\n" not in str(caught.value)
