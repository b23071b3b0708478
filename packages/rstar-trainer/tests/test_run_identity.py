"""What a run may go on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.run_identity import RunIdentity, check_identity, file_fingerprint, package_versions

RECIPE = {"name": "r", "run_dir": "runs/a", "stages": [{"name": "rl-1", "learning_rate": 1e-6}]}
BEFORE = RunIdentity(RECIPE, {"torch": "2.13", "peft": None}, {"data.train": "a" * 64})
CHANGES = {
    "data": (replace(BEFORE, data={"data.train": "b" * 64}), "data.train"),
    "recipe": (
        replace(BEFORE, recipe={**RECIPE, "stages": [{"name": "rl-1", "learning_rate": 2e-6}]}),
        "stages.rl-1.learning_rate was 1e-06, is 2e-06",
    ),
    "packages": (replace(BEFORE, packages={"torch": "2.14", "peft": None}), "torch was 2.13, is 2.14"),
}


def test_a_run_goes_on_from_its_own_checkpoint_also_from_another_folder() -> None:
    moved = replace(BEFORE, recipe={**RECIPE, "run_dir": "elsewhere"})
    assert check_identity(BEFORE, moved, (), Path("run")) == {}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_an_error_that_names_it_and_the_flag(kind: str) -> None:
    now, shown = CHANGES[kind]
    with pytest.raises(UserInputError) as raised:
        check_identity(BEFORE, now, (), Path("run"))
    assert shown in str(raised.value)
    assert f"--accept {kind}" in str(raised.value)


@pytest.mark.parametrize("kind", CHANGES)
def test_an_accepted_change_is_returned_for_the_log(kind: str) -> None:
    now, shown = CHANGES[kind]
    found = check_identity(BEFORE, now, [kind], Path("run"))  # type: ignore[list-item]
    assert list(found) == [kind]
    assert shown in found[kind][0]  # type: ignore[index]


def test_accepting_one_kind_accepts_no_other() -> None:
    both = replace(CHANGES["data"][0], packages={})
    with pytest.raises(UserInputError, match="--accept packages"):
        check_identity(BEFORE, both, ["data"], Path("run"))


def test_an_added_stage_is_a_change() -> None:
    longer = replace(BEFORE, recipe={**RECIPE, "stages": [*RECIPE["stages"], {"name": "rl-2"}]})  # type: ignore[misc]
    with pytest.raises(UserInputError, match="stages was"):
        check_identity(BEFORE, longer, (), Path("run"))


def test_it_survives_json() -> None:
    assert RunIdentity.from_json_dict(BEFORE.to_json_dict()) == BEFORE


def test_versions_name_what_is_installed() -> None:
    found = package_versions()
    assert found["torch"]
    assert found["rstar-trainer"]


def test_a_files_fingerprint_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"y")
    assert file_fingerprint(tmp_path / "a") != file_fingerprint(tmp_path / "b")
