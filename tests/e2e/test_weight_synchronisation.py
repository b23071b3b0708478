"""After a large update the engine computes what the trainer computes, and this check tells when the update is skipped.

Real vLLM behind a RolloutService process, the real learner, and weights by files, as in a run. Both sides compute in
float32, so that what is left is what went wrong.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from rstar_protos.service import EmbeddedService, open_channel
from rstar_rollout.client import RolloutClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings

# The shared runs that the first test waits for take minutes, many on a busy machine.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

pytest.importorskip("vllm")

PROBLEMS = ("What is 17 plus 25?", "A box holds 12 pens. How many pens do 7 boxes hold?")
SAMPLES = 6
LEARNING_RATE = 3e-4
LEAST_MOVED = 0.2
MOST_MEAN, MOST_PERCENTILE = 0.02, 0.2  # nats


@dataclass(frozen=True)
class Update:
    """A learner after one large update, and the weights of before and after as engines load them."""

    learner: Any
    before: Any
    after: Any
    log_probs_before: Any
    """Of the tokens that it learned from."""


@pytest.fixture(scope="module")
def engine(make_workplace, taught):
    """A rollout service over vLLM; its endpoint."""
    options = {
        "model": taught,
        "engine": "vllm",
        "dtype": "float32",
        "kv-gib": 1.0,
        "max-batch": 16,
        "max-model-tokens": 640,
        "sandbox": "none",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "rstar_rollout", "serve", "--no-deterministic", *arguments]
    log = make_workplace().folder / "rollout.log"
    with EmbeddedService("rollout", command, log_path=log, start_seconds=600) as service:
        yield service.endpoint


@pytest.fixture(scope="module")
def rollouts(engine):
    """Trajectories of the policy before its update."""
    return generate(engine)


@pytest.fixture(scope="module")
def update(rollouts, taught, tmp_path_factory):
    """One update that pulls half of the rollouts up and pushes the others down."""
    from rstar_model.policy import Policy
    from rstar_trainer.learner import TorchLearner
    from rstar_trainer.recipe import LossSettings, OptimizerSettings
    from rstar_trainer.sequences import WeightedSequence

    learner = TorchLearner(Policy.load(taught, dtype="float32", autocast=None), OptimizerSettings(), "float32")
    folder = tmp_path_factory.mktemp("weights")
    before, log_probs = learner.write_weights(folder / "before", 1), trainer_log_probs(learner, rollouts)
    sequences = [
        WeightedSequence.from_ledger(rollout.ledger, group=0, advantage=1.0 if number % 2 else -1.0)
        for number, rollout in enumerate(rollouts)
    ]
    learner.policy_update(sequences, LEARNING_RATE, 1.0, LossSettings())
    return Update(learner, before, learner.write_weights(folder / "after", 2), log_probs)


def generate(endpoint, manifest=None):
    """Trajectories without tools, sorted; the engine is given the weights first."""

    async def ask():
        channel = open_channel(endpoint)
        try:
            client = RolloutClient(channel)
            if manifest is not None:
                await client.update_weights(manifest)
            found = client.generate_groups(
                [ProblemRequest(f"p{n}", f"p{n}", text, SAMPLES) for n, text in enumerate(PROBLEMS)],
                SamplingSettings(seed=3),
                RolloutLimits(max_turns=1, max_response_tokens=48),
                ToolSettings(enabled=False),
            )
            return [trajectory async for trajectory in found]
        finally:
            await channel.close()

    return sorted(asyncio.run(ask()), key=lambda rollout: rollout.trajectory_id)


def trainer_log_probs(learner, rollouts):
    """What the trainer computes for the policy's tokens, in order."""
    import torch

    from rstar_model.packing import pack

    packed = pack([rollout.ledger for rollout in rollouts])
    with torch.no_grad():
        return learner.policy.forward_log_probs(packed).log_probs[packed.loss_mask]


def differences(learner, rollouts):
    """|engine - trainer| for each of the policy's tokens, nats."""
    import torch

    engine = [value for rollout in rollouts for value in rollout.ledger.log_probs if value == value]
    return (torch.tensor(engine) - trainer_log_probs(learner, rollouts)).abs()


def agree(found):
    return float(found.mean()) <= MOST_MEAN and float(found.quantile(0.99)) <= MOST_PERCENTILE


def test_update_moves_the_policy_far(update, rollouts):
    moved = (trainer_log_probs(update.learner, rollouts) - update.log_probs_before).abs()
    assert float(moved.mean()) > LEAST_MOVED


def test_engine_and_trainer_agree_after_the_update(engine, update):
    assert agree(differences(update.learner, generate(engine, update.after)))


def test_they_do_not_agree_when_the_update_is_skipped(engine, update):
    assert not agree(differences(update.learner, generate(engine, update.before)))
