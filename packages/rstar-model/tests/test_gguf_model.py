from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

from rstar_model.gguf_model import convert_gguf  # noqa: E402
from rstar_model.tokenizer import load_tokenizer  # noqa: E402
from rstar_protos.errors import UserInputError  # noqa: E402


def test_the_converted_model_computes_what_the_original_does(tmp_path: Path, gguf_file, tiny_llama) -> None:
    gguf_file(tmp_path / "m.gguf")
    (tmp_path / "m").mkdir()
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert torch.equal(model(ids).logits, tiny_llama(ids).logits)


def test_the_converted_tokenizer_gives_the_same_ids(tmp_path: Path, gguf_file, tokenizer) -> None:
    gguf_file(tmp_path / "m.gguf")
    (tmp_path / "m").mkdir()
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    converted = load_tokenizer(tmp_path / "m")
    text = "<|im_start|>user\nWhat is 2 + 2? é<|im_end|>\n"
    assert converted.encode(text) == tokenizer.encode(text)
    assert converted.eos_ids == tokenizer.eos_ids
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert fast(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)


def test_another_architecture_is_refused(tmp_path: Path, gguf_file) -> None:
    gguf_file(tmp_path / "m.gguf", architecture="gpt2")
    with pytest.raises(UserInputError, match="gpt2"):
        convert_gguf(tmp_path / "m.gguf", tmp_path)
