"""A run whose engine gives its memory back while the learner computes."""

from e2e_runs import SCRIPTED_TRAINER


def test_the_run_is_the_one_of_an_engine_that_stays_awake(light, reference):
    run = light.start("run", "light", {"engine.sleep_level": 1}, trainer=SCRIPTED_TRAINER).succeed()
    assert run.steps() == reference[1].steps()
    assert run.report["stages"][-1]["pass_at_1"] == reference[1].report["stages"][-1]["pass_at_1"]
