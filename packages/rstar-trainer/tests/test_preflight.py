"""Files and folders are checked before anything starts."""

from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.preflight import check_files, check_model_source
from rstar_trainer.recipe import load_recipe

FILES = ("config.json", "tokenizer.json", "model.safetensors")


def refused(source: object) -> str:
    with pytest.raises(UserInputError) as caught:
        check_model_source(str(source))
    assert str(caught.value).startswith("model.source:")
    return str(caught.value)


def model(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    "field", ["data.train.path", "data.heldout.path", "sft.path", "services.sandbox.ca", "services.reward.token_file"]
)
def test_a_missing_file_is_named_by_its_field(tmp_path: Path, field: str) -> None:
    remote = "services.sandbox.endpoint=grpcs://127.0.0.1:7101"
    recipe = load_recipe("quickstart", [remote, f"{field}={tmp_path / 'absent'}"])
    with pytest.raises(UserInputError) as caught:
        check_files(recipe)
    assert str(caught.value).startswith(f"{field}:")


def test_the_quickstart_needs_no_files() -> None:
    check_files(load_recipe())


def test_a_whole_model_folder_passes(tmp_path: Path) -> None:
    check_model_source(str(model(tmp_path, *FILES)))


def test_sharded_weights_pass(tmp_path: Path) -> None:
    check_model_source(str(model(tmp_path, "config.json", "tokenizer.json", "model.safetensors.index.json")))


@pytest.mark.parametrize(("missing", "said"), [(FILES[0], FILES[0]), (FILES[1], "tokenizer"), (FILES[2], "weights")])
def test_what_a_model_folder_lacks_is_named(tmp_path: Path, missing: str, said: str) -> None:
    assert said in refused(model(tmp_path, *(name for name in FILES if name != missing)))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "exists" in refused(tmp_path / "absent")


def test_a_file_is_no_model_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("x")
    assert "not a file" in refused(path)


def test_a_plain_name_is_left_to_fetching() -> None:
    check_model_source("smollm2-135m")
