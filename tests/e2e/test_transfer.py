"""Weights that the learner sends to real vLLM without a file: a whole run, through the death of the engine.

A tiny random Llama answers nothing right, so SFT is what changes its weights; what counts here is how they arrive.
"""

import os
import signal

import pytest
from e2e_processes import arguments_of, children_of, nothing_left
from e2e_runs import SCRIPTED_TRAINER

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

pytest.importorskip("vllm")

SETTINGS = {
    "engine.type": "vllm",
    "engine.transfer": "shared_memory",
    "engine.kv_cache_gib": 0.25,
    "engine.max_batch": 8,
    "engine.max_model_len": 640,
    "sft.enabled": True,
    "sft.examples": 4,
    "sft.steps": 2,
    "sft.batch_size": 2,
    "evaluation.max_response_tokens": 24,
    "stages.rl-1.steps": 1,
    "stages.rl-1.max_turns": 1,
    "stages.rl-1.max_response_tokens": 24,
    "stages.rl-1.refill_rounds": 0,
}


@pytest.fixture(scope="module")
def policy(tiny_policy, tmp_path_factory):
    """As large as vLLM's attention on CPUs needs it."""
    import shutil

    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(tiny_policy, head_dim=32, num_attention_heads=2, num_key_value_heads=1)
    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    for path in tiny_policy.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def finished(make_light, policy):
    """A run whose engine was killed after the evaluation of the base model, and where it was made."""
    workplace = make_light()
    trainer = workplace.start("run", "light", {**SETTINGS, "model.source": policy})
    trainer.until(lambda: trainer.run.folder.is_dir() and trainer.run.records("evaluation"), "the base is evaluated")
    os.kill(engine_of(trainer.service("rollout")), signal.SIGKILL)
    return trainer.succeed(), workplace


def engine_of(service):
    """The process of vLLM's engine under a rollout service."""
    (found,) = [pid for pid in children_of(service) if "EngineCore" in " ".join(arguments_of(pid))]
    return found


def test_every_rollout_is_generated_by_the_weights_of_its_step(finished):
    run, _ = finished
    spans = [span for rollout in run.trajectories("rl-1", 1) for span in rollout["spans"] if span["kind"] == "policy"]
    assert {span["weight_version"] for span in spans} == {SETTINGS["sft.steps"] + 1}  # the first policy is version 1


def test_a_new_engine_was_sent_the_weights_and_went_on(finished):
    run, _ = finished
    log = (run.folder / "logs" / "rollout.log").read_text(errors="replace")
    assert "engine-0 died" in log
    assert [entry["name"] for entry in run.report["stages"]] == ["base", "sft", "rl-1"]


def test_no_weights_were_written_for_the_engine(finished):
    run, _ = finished
    assert not (run.folder / "weights").exists()
    assert (run.folder / "policy").is_dir()


def test_a_service_started_for_something_else_is_refused_before_anything_is_generated(light):
    """The scripted service takes the place of the one that the trainer starts, and takes files alone."""
    settings = {"engine.type": "vllm", "engine.transfer": "shared_memory"}
    trainer = light.start("run", "light", settings, trainer=SCRIPTED_TRAINER)
    assert trainer.wait() == 2
    (error,) = trainer.errors
    assert "engine.transfer: 'shared_memory'" in error
    assert "--transfer-backend rstar_shared_memory" in error
    assert not (trainer.run.folder / "run.json").exists()  # a mended recipe can use the folder


def test_no_process_is_left_behind(finished):
    _, workplace = finished
    nothing_left(workplace.mark)
