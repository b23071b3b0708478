"""Sampling settings: what is refused and what is passed on."""

import pytest

from rstar_eval.settings import EvalSettings
from rstar_protos.errors import UserInputError


def test_several_samples_at_temperature_zero_are_refused():
    with pytest.raises(UserInputError, match="temperature 0"):
        EvalSettings(samples=2, temperature=0)


def test_one_greedy_sample_is_fine():
    assert EvalSettings(samples=1, temperature=0).sampling().temperature == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("max_turns", 0),
        ("max_response_tokens", 0),
        ("seed", -1),
        ("retries", -1),
        ("tool_wall_seconds", float("nan")),
        ("score_timeout_seconds", 0),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(UserInputError) as caught:
        EvalSettings(**{field: value})
    assert caught.value.field == field


def test_settings_return_from_json():
    settings = EvalSettings(samples=4, temperature=0.3, tools_enabled=False)
    assert EvalSettings.from_json_dict(settings.to_json_dict()) == settings


def test_unknown_stored_setting_is_refused():
    with pytest.raises(UserInputError, match="tempreature"):
        EvalSettings.from_json_dict({"tempreature": 1})


def test_effort_does_not_change_the_distribution():
    assert EvalSettings(samples=1).sampling_key == EvalSettings(samples=8, retries=0).sampling_key
    assert EvalSettings(seed=1).sampling_key != EvalSettings(seed=2).sampling_key


def test_tool_ablation_reaches_the_request():
    assert not EvalSettings(tools_enabled=False).tools().enabled
    assert EvalSettings().tools().enabled
