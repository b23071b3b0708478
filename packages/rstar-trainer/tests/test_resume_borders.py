"""Training from stored trajectories, stopped after any step and resumed from its checkpoint, ends bit-equal.

The steps cross the borders of epochs and of a stage that forgets the optimizer's moments, and a checkpoint falls on
each of them.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.policy import Policy
from rstar_trainer.checkpoint import CheckpointWriter, RunState, read_checkpoint
from rstar_trainer.data import ProblemSampler, TrainProblem
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.run_identity import RunIdentity
from rstar_trainer.sequences import WeightedSequence

STEPS, PER_STEP, STAGE_BORDER = 5, 2, 3
PROBLEMS = [TrainProblem(f"p{n}", f"text {n}", str(n), "test") for n in range(4)]  # an epoch is two steps
IDENTITY = RunIdentity({}, {}, {})
CONFIG = LlamaConfig(vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)


class Run:
    """Sampler, learner and state of a run whose rollouts are stored: a function of problem and step."""

    def __init__(self) -> None:
        self.state = RunState()
        self.sampler = ProblemSampler(PROBLEMS, seed=9)
        self.learner = TorchLearner(Policy.from_config(CONFIG, autocast="bfloat16", seed=1), OptimizerSettings())

    def resume(self, folder: Path) -> None:
        self.state, _ = read_checkpoint(folder)
        self.learner.load_saved(folder)
        self.sampler.load_state_dict(self.state.samplers["all"])

    def step(self) -> tuple[float, float]:
        if self.state.global_step == STAGE_BORDER:
            self.learner.reset_optimizer()
        sequences = [
            sequence
            for group, problem in enumerate(self.sampler.draw(PER_STEP))
            for sequence in stored(problem, self.state.global_step, group)
        ]
        metrics = self.learner.policy_update(sequences, 1e-3, 1.0, LossSettings(updates_per_step=2))
        self.state.global_step += 1
        self.state.samplers["all"] = self.sampler.state_dict()
        return metrics.loss, metrics.grad_norm

    @property
    def parameters(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.learner.policy.model.parameters()])


def stored(problem: TrainProblem, step: int, group: int) -> list[WeightedSequence]:
    rng = random.Random(f"{problem.problem_id} {step}")
    found = []
    for advantage in (1.0, -1.0):
        ids = tuple(rng.randrange(41) for _ in range(rng.randint(5, 12)))
        mask = (False, False, *[True] * (len(ids) - 2))
        found.append(WeightedSequence(ids, mask, (math.nan,) * len(ids), group, advantage))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[tuple[float, float]], Path]:
    """A run that nothing disturbed, its losses and norms, and its folder with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("whole")
    run, figures = Run(), []
    with CheckpointWriter(folder, IDENTITY, keep=STEPS) as writer:
        for _ in range(STEPS):
            figures.append(run.step())
            writer.begin(run.state, run.learner)
    return run, figures, folder


@pytest.mark.parametrize("done", range(1, STEPS + 1))
def test_a_run_resumed_after_any_step_ends_bit_equal(
    whole: tuple[Run, list[tuple[float, float]], Path], done: int
) -> None:
    expected, figures, folder = whole
    run = Run()
    run.resume(folder / "checkpoints" / f"step-{done:06d}")
    assert [run.step() for _ in range(STEPS - done)] == figures[done:]
    assert torch.equal(run.parameters, expected.parameters)
    assert run.sampler.state_dict() == expected.sampler.state_dict()
