"""The learner on two DeepSpeed ranks under Ray: what a trainer sees of it, and what it sees when a rank is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("deepspeed")

from transformers import LlamaConfig

from rstar_model.policy import Policy
from rstar_protos.errors import UserInputError
from rstar_trainer.backends.zero_learner import ZeroLearner
from rstar_trainer.backends.zero_rank import RankSettings
from rstar_trainer.learner import TorchLearner
from rstar_trainer.learner_faults import LearnerLostError
from rstar_trainer.recipe import LearnerSettings, LossSettings, ModelSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

RANKS = 2
BATCH = [
    WeightedSequence(
        tuple(range(3 + number, 13 + number)),
        (False,) * 4 + (True,) * 6,
        (float("nan"),) * 4 + (-3.0,) * 6,
        number // 2,
        1.0 if number % 2 else -1.0,
    )
    for number in range(6)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    folder = tmp_path_factory.mktemp("model")
    Policy.from_config(config, seed=3).save(folder)
    return folder


@pytest.fixture(autouse=True)
def without_ray_afterwards() -> Iterator[None]:
    import ray

    yield
    ray.shutdown()


def settings(model: Path, **changes: object) -> RankSettings:
    learner = LearnerSettings(backend="deepspeed", **{"ranks": RANKS, "zero_stage": 3, **changes})  # type: ignore[arg-type]
    return RankSettings(model, ModelSettings(autocast=None, threads=1), OptimizerSettings(), learner, "float32", 1)


def test_a_lost_rank_is_told_and_a_new_learner_goes_on_from_the_checkpoint(model: Path, tmp_path: Path) -> None:
    """One start of Ray after the other: starting is most of the time."""
    single = TorchLearner(Policy.load(model, autocast=None), OptimizerSettings(), "float32")
    expected = [single.policy_update(BATCH, 1e-3, 1.0, LossSettings()) for _ in range(2)]

    learner = ZeroLearner(settings(model))
    first = learner.policy_update(BATCH, 1e-3, 1.0, LossSettings())
    assert (first.loss, first.grad_norm) == pytest.approx((expected[0].loss, expected[0].grad_norm), rel=1e-4, abs=1e-6)
    manifest = learner.write_weights(tmp_path / "weights", 2)
    assert (manifest.version, manifest.path) == (2, tmp_path / "weights")
    (tmp_path / "checkpoint").mkdir()
    learner.begin_save(tmp_path / "checkpoint")()

    os.kill(learner.process_ids()[1], signal.SIGKILL)
    with pytest.raises(LearnerLostError, match="rank"):
        learner.policy_update(BATCH, 1e-3, 1.0, LossSettings())
    learner.close()

    again = ZeroLearner(settings(model))
    again.load_saved(tmp_path / "checkpoint")
    assert again.write_weights(tmp_path / "resumed", 2).checksum == manifest.checksum
    second = again.policy_update(BATCH, 1e-3, 1.0, LossSettings())
    assert (second.loss, second.grad_norm) == pytest.approx(
        (expected[1].loss, expected[1].grad_norm), rel=1e-4, abs=1e-6
    )
    with pytest.raises(ValueError, match="at least one accepted group"):
        again.policy_update([], 1e-3, 1.0, LossSettings())
    with pytest.raises(UserInputError, match="DeepSpeed ranks"):
        again.load_saved(tmp_path)
    again.close()


def test_what_no_node_can_hold_is_told_before_anything_waits(model: Path) -> None:
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    with pytest.raises(UserInputError, match=r"learner\.ranks.*no more than fit"):
        ZeroLearner(settings(model))
    with pytest.raises(UserInputError, match=r"learner\.gpus_per_rank.*0 GPU"):
        ZeroLearner(settings(model, gpus_per_rank=1))
