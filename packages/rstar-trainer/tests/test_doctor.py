"""The examination of the machine."""

import json
from importlib.metadata import version

import pytest

from rstar_trainer.doctor import examine


def test_installed_versions_are_reported() -> None:
    packages = examine()["packages"]
    assert packages["torch"] == version("torch")
    assert packages["rstar-trainer"] == version("rstar-trainer")


def test_the_result_is_json() -> None:
    found = examine()
    assert json.loads(json.dumps(found)) == found
    assert found["cpus"] >= 1


def test_device_variables_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    assert examine()["environment"]["ROCR_VISIBLE_DEVICES"] == "0,1"
