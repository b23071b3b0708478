"""A step at the paper's learning rate is too small for log-probabilities to show; checksums of what is loaded show it.

Real vLLM engines (CPU) in bfloat16, the real learner, weights by files. After a step at 1e-6 one engine has one bit of
one weight turned, another keeps the weights from before the step: the canary cannot tell either from a good engine, and
neither generates anything more.
"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

# Two engines start one after another, each in minutes on a busy machine.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3000)]

pytest.importorskip("vllm")

FAULTS = Path(__file__).resolve().parents[2] / "packages" / "rstar-rollout" / "tests" / "engines" / "hosts"
LEARNING_RATE = 1e-6
CANARY_NATS = 0.3  # what an engine in bfloat16 is allowed, see VllmWeights


@pytest.fixture(scope="module")
def sent(smollm2, tmp_path_factory):
    """Weights before and after one update at 1e-6, as the learner sends them to vLLM."""
    from rstar_model.chat_format import ChatFormat
    from rstar_model.policy import Policy
    from rstar_model.tokenizer import load_tokenizer
    from rstar_trainer.canary import canary_ids
    from rstar_trainer.learner import TorchLearner
    from rstar_trainer.recipe import OptimizerSettings
    from rstar_trainer.sequences import WeightedSequence

    tokenizer = load_tokenizer(smollm2)
    ids = canary_ids(ChatFormat.load("rstar"), tokenizer)
    learner = TorchLearner(Policy.load(smollm2), OptimizerSettings(), "bfloat16", ids)
    folder = tmp_path_factory.mktemp("weights")
    before = learner.write_weights(folder / "before", 1)
    text = tokenizer.encode("17 plus 25 is 42, and 7 times 12 is 84.")
    mask = tuple(position > 0 for position in range(len(text)))
    learner.supervised_update([WeightedSequence(tuple(text), mask, (float("nan"),) * len(text))], LEARNING_RATE, 4096)
    return before, learner.write_weights(folder / "after", 2)


def settings():
    from rstar_rollout.engines.vllm_engine import VllmSettings

    return VllmSettings(kv_gib=0.25, max_model_tokens=256, worker_extension="faulty_worker.FaultyWorker")


async def update(engine, manifest):
    from rstar_rollout.engines.base import WeightSource

    await engine.begin_weight_update(manifest.version, WeightSource(str(manifest.path)))
    await engine.commit_weight_update(manifest.version, manifest.checksum)


async def refuses(engine):
    """Whether the engine refuses to generate."""
    from rstar_rollout.engines.base import EngineNotReadyError, GenerationRequest, NoiseKey

    request = GenerationRequest("r", "s", tuple(range(40, 60)), 4, 1.0, 1.0, 0, frozenset(), NoiseKey(1, "p", 0, 0))
    try:
        result = await engine.generate(request)
    except EngineNotReadyError:
        return True
    assert result.token_ids
    return False


async def canary_distance_of(engine, manifest):
    """Mean distance of what the engine computes from what the learner computed, nats."""
    from rstar_rollout.engines.vllm_weights import canary_distance

    await engine._llm.resume_generation()
    return canary_distance(manifest.canary, await engine._started._canary_log_probs(manifest.canary))


async def _story(smollm2, before, after):
    from rstar_rollout.engines.base import WeightUpdateError
    from rstar_rollout.engines.vllm_engine import VllmEngine

    turned, behind = VllmEngine(smollm2, settings()), VllmEngine(smollm2, settings())
    found = {}
    try:
        for engine in (turned, behind):
            await engine.start()
            await update(engine, before)
        await update(turned, after)
        found["good"] = await canary_distance_of(turned, after)
        found["good refuses"] = await refuses(turned)

        (moved,) = await turned._llm.collective_rpc("rstar_flip", args=("model.layers.7.mlp.gate_up_proj", 2000, 300))
        found["moved"] = moved
        found["turned"] = await canary_distance_of(turned, after)
        with pytest.raises(WeightUpdateError, match=r"1 parameters are not what was sent: \S*7.mlp.up_proj"):
            await turned.verify_weights()
        found["turned refuses"] = await refuses(turned)

        await behind._llm.collective_rpc("rstar_ignore_next_update")
        with pytest.raises(WeightUpdateError, match="are not what was sent"):
            await update(behind, after)
        found["behind refuses"] = await refuses(behind)
        found["behind"] = await canary_distance_of(behind, after)

        await update(behind, after)
        found["mended refuses"] = await refuses(behind)
    finally:
        await asyncio.gather(turned.shutdown(), behind.shutdown())
    return found


@pytest.fixture(scope="module")
def story(smollm2, sent):
    """What was seen; see the module text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setattr(sys, "path", [str(FAULTS), *sys.path])
        return asyncio.run(_story(smollm2, *sent))


def test_a_good_engine_generates(story):
    assert not story["good refuses"]


def test_the_canary_cannot_see_either_fault(story):
    assert 0 < story["moved"] < 0.01
    for fault in ("turned", "behind"):
        assert abs(story[fault] - story["good"]) < 0.02 < CANARY_NATS
        assert story[fault] < CANARY_NATS


def test_an_engine_with_a_turned_bit_refuses(story):
    assert story["turned refuses"]


def test_an_engine_that_was_left_behind_refuses_until_it_catches_up(story):
    assert story["behind refuses"]
    assert not story["mended refuses"]
