"""SFT on public tool-call data, and SFT that goes on from a checkpoint in its middle, through the whole trainer."""

import math
import shutil

import pytest
from e2e_runs import SCRIPTED_TRAINER

# Several runs, each of them minutes long on a busy machine.
pytestmark = pytest.mark.timeout(2400)

STEPS = 4
SETTINGS = {
    "sft.enabled": True,
    "sft.steps": STEPS,
    "sft.batch_size": 3,
    "sft.examples": 30,
    "sft.learning_rate": 1e-3,
    "sft.checkpoint_every_steps": 1,
    "checkpoint.keep": 10,
    "stages": [],
}


@pytest.fixture(scope="module")
def whole(make_light):
    """A run of SFT alone on generated conversations, which nothing disturbed, with a checkpoint of every step."""
    workplace = make_light()
    return workplace, workplace.start("run", "light", SETTINGS, trainer=SCRIPTED_TRAINER).succeed()


def figures(run):
    return {
        record.global_step: {name: value for name, value in record.values.items() if "per_second" not in name}
        for record in run.records("sft")
    }


@pytest.mark.parametrize("done", [1, STEPS - 1])
def test_resumed_sft_is_the_one_that_nothing_disturbed(whole, done):
    workplace, run = whole
    other = workplace.folder / f"resumed-{done}"
    shutil.copytree(run.folder, other)
    shutil.rmtree(other / "policy")
    for step in range(done + 1, STEPS + 1):
        shutil.rmtree(other / "checkpoints" / f"step-{step:06d}")
    resumed = workplace.resume(other.name, trainer=SCRIPTED_TRAINER).succeed()
    assert figures(resumed) == figures(run)
    saved = [found.folder / "policy" / "model.safetensors" for found in (run, resumed)]
    assert saved[0].read_bytes() == saved[1].read_bytes()


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["sft_glaive_demo", "sft_reason_tool_use_demo_50"])
def test_public_data_trains_and_the_log_tells_what_was_left_out(light, shared_data, name):
    settings = {**SETTINGS, "sft.path": shared_data / f"{name}.jsonl", "sft.max_tokens": 6000}
    run = light.start("run", "light", settings, trainer=SCRIPTED_TRAINER).succeed()
    losses = [values["loss"] for values in figures(run).values()]
    assert len(losses) == STEPS
    assert all(math.isfinite(loss) for loss in losses)
    # Random weights over bytes: any learning at all shows.
    assert losses[-1] < losses[0]
    assert f"{name}.jsonl: " in run.events()
    assert " kept with " in run.events()
