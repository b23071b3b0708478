"""Model shapes from configuration and file headers alone."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.model_shape import ModelShape, model_shape

CONFIG = {"num_attention_heads": 4, "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}


def folder(path: Path, config: dict[str, Any], *files: dict[str, list[int]]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for number, tensors in enumerate(files):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        header |= {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors.items()}
        text = json.dumps(header).encode()
        (path / f"model-{number}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return path


def test_parameters_are_counted_over_all_files(tmp_path: Path) -> None:
    shape = ModelShape.of_folder(folder(tmp_path, CONFIG, {"a": [100, 32], "scalar": []}, {"b": [32]}))
    assert shape == ModelShape(100 * 32 + 1 + 32, layers=2, hidden=32, kv_heads=4, head_dim=8, vocabulary=100)


def test_grouped_heads_and_their_width_are_read(tmp_path: Path) -> None:
    shape = ModelShape.of_folder(folder(tmp_path, {**CONFIG, "num_key_value_heads": 2, "head_dim": 16}))
    assert shape.kv_bytes_per_token(2) == 2 * 2 * 2 * 16 * 2


def test_a_known_name_has_a_shape_before_it_is_fetched() -> None:
    shape = model_shape("smollm2-135m")
    assert shape is not None
    assert shape.kv_bytes_per_token(2) == 23_040


def test_an_unknown_name_has_none() -> None:
    assert model_shape("some-other-model") is None


@pytest.mark.parametrize("config", ["{", "{}", '{"num_attention_heads": null}'])
def test_an_unusable_configuration_is_an_input_error(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserInputError, match=r"model\.source"):
        model_shape(str(tmp_path))


def test_a_broken_weights_file_is_an_input_error(tmp_path: Path) -> None:
    (folder(tmp_path, CONFIG) / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(UserInputError, match=r"model\.source"):
        model_shape(str(tmp_path))
