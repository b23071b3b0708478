"""The same recipe with `engine.type = "vllm"`: real vLLM on the CPU takes part in two steps.

Nothing else of the recipe is changed, so both sides compute in bfloat16, each with its own rounding, from weights that
are stored in float32. How closely they agree in float32 is in test_weight_synchronisation.py.
"""

import pytest
from e2e_processes import nothing_left

# The shared runs that the first test waits for take minutes, many on a busy machine.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

pytest.importorskip("vllm")

STEPS = 2
MOST_MISMATCH = 0.05  # nats, mean


@pytest.fixture(scope="module")
def finished(make_real, taught):
    """A run with vLLM, and where it was made."""
    workplace = make_real()
    settings = {
        "model.source": taught,
        "engine.type": "vllm",
        "sft.enabled": False,
        "stages.rl-1.steps": STEPS,
        "stages.rl-1.refill_rounds": 1,
    }
    return workplace.start("run", "real", settings).succeed(), workplace


def policy_spans(run, step):
    found = [span for rollout in run.trajectories("rl-1", step) for span in rollout["spans"]]
    return [span for span in found if span["kind"] == "policy"]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_every_rollout_of_a_step_is_scored(finished, step):
    run, _ = finished
    _, figures = run.steps()[step]
    assert figures["rollouts"] >= 24
    assert figures["unscorable"] == 0
    assert {rollout["engine"] for rollout in run.trajectories("rl-1", step)} == {"vllm"}


def test_rollouts_call_the_tool(finished):
    run, _ = finished
    calls = [call for rollout in run.trajectories("rl-1", 1) for call in rollout["tool_calls"]]
    assert any(call["status"] == "ok" for call in calls)


def test_every_update_reaches_the_engine(finished):
    run, _ = finished
    updates = 0
    for step, (_, figures) in run.steps().items():
        assert {span["weight_version"] for span in policy_spans(run, step)} == {updates + 1}
        updates += figures["update_skipped"] == 0
    assert updates > 0


def test_engine_and_trainer_agree_in_every_step(finished):
    run, _ = finished
    found = [figures["mismatch"] for _, figures in run.steps().values() if "mismatch" in figures]
    assert found
    assert max(found) <= MOST_MISMATCH


def test_the_same_stored_trajectories_give_the_same_update_bit_for_bit(finished, taught):
    """vLLM's rollouts are not repeated by a resumed run, but what a step makes of its own is."""
    import torch

    from rstar_model.policy import Policy
    from rstar_trainer.learner import TorchLearner
    from rstar_trainer.replay import stored_sequences
    from rstar_trainer.run_folder import RunFolder
    from rstar_trainer.schedule import warmup_learning_rate

    run, _ = finished
    _, recipe = RunFolder.open(run.folder)
    stage = recipe.stages[0]
    sequences = stored_sequences(run.folder, stage, STEPS)
    learner = TorchLearner(Policy.load(taught, autocast=recipe.model.autocast), recipe.optimizer)
    learner.load_saved(run.folder / "checkpoints" / f"step-{STEPS - 1:06d}")
    if sequences:
        rate = warmup_learning_rate(STEPS - 1, stage.learning_rate, stage.warmup_steps)
        metrics = learner.policy_update(sequences, rate, stage.temperature, stage.loss)
        _, figures = run.steps()[STEPS]
        assert (metrics.loss, metrics.grad_norm) == (figures["loss"], figures["grad_norm"])
    saved = torch.load(run.folder / "checkpoints" / f"step-{STEPS:06d}" / "learner.pt", weights_only=True)["model"]
    state = learner.policy.model.state_dict()
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in saved.items())


def test_no_process_is_left_behind(finished):
    nothing_left(finished[1].mark)
