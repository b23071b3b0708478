"""Learner and engine on one GPU: weights by IPC, and an engine that sleeps while the learner computes."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SETTINGS = {
    "engine.type": "vllm",
    "engine.transfer": "ipc",
    "sft.examples": 8,
    "sft.steps": 2,
    "sft.batch_size": 4,
    "stages.rl-1.steps": 1,
    "stages.rl-1.refill_rounds": 0,
}


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_colocated_run_generates_with_the_weights_of_each_step(make_real, smollm2, level):
    settings = {**SETTINGS, "model.source": smollm2, "engine.sleep_level": level}
    run = make_real().start("run", "real", settings).succeed()
    spans = [span for rollout in run.trajectories("rl-1", 1) for span in rollout["spans"] if span["kind"] == "policy"]
    assert {span["weight_version"] for span in spans} == {SETTINGS["sft.steps"] + 1}
    assert not (run.folder / "weights").exists()
    log = (run.folder / "logs" / "rollout.log").read_text(errors="replace")
    assert "died" not in log
