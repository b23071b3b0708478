"""Turns a GGUF file of a Llama-type model into an ordinary Hugging Face folder.

Quantised tensors become float32. The conversion is a pure function of the file, so its result can be checked by
checksum; it needs the packages gguf, numpy and safetensors, not torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rstar_protos.errors import UserInputError

__all__ = ["convert_gguf"]

Array = npt.NDArray[np.float32]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_CONTROL_TOKEN = 3  # token type in GGUF


def convert_gguf(path: Path, folder: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and tokenizer files into an existing folder.

    Args:
        path: a GGUF file of architecture llama with a byte-level BPE tokenizer.
        folder: to write into.

    Raises:
        UserInputError: another architecture, tokenizer or tensor name.
    """
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    accepted = "a GGUF file of a Llama-type model with byte-level BPE"
    kinds = (fields.get("general.architecture"), fields.get("tokenizer.ggml.model"))
    if kinds != ("llama", "gpt2"):
        raise UserInputError("GGUF file", f"{path.name}: {kinds[0]} with {kinds[1]} tokenizer", accepted)
    heads = int(fields["llama.attention.head_count"])
    kv_heads = int(fields.get("llama.attention.head_count_kv", heads))
    tensors = dict(_tensors(reader, heads, kv_heads))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # written privately; a cache may be shared
    tied = "lm_head.weight" not in tensors
    _write_json(folder / "config.json", _config(fields, heads, kv_heads, tied))
    _write_json(folder / "generation_config.json", _token_ids(fields))
    _write_tokenizer(fields, folder)


def _tensors(reader: Any, heads: int, kv_heads: int) -> Iterator[tuple[str, Array]]:
    for tensor in reader.tensors:
        data = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        stem = tensor.name.removesuffix(".weight")
        if stem in _OUTER_NAMES:
            yield f"{_OUTER_NAMES[stem]}.weight", data
            continue
        block, _, rest = stem.removeprefix("blk.").partition(".")
        if rest not in _LAYER_NAMES:
            raise UserInputError("GGUF tensor", tensor.name, "the tensors of a Llama-type model")
        if rest in ("attn_q", "attn_k"):
            data = _rotary_halves(data, heads if rest == "attn_q" else kv_heads)
        yield f"model.layers.{block}.{_LAYER_NAMES[rest]}.weight", data


def _rotary_halves(weight: Array, heads: int) -> Array:
    """Rows in transformers' order, where a rotated pair is half a head apart; in GGUF's the two are neighbours."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _config(fields: Mapping[str, Any], heads: int, kv_heads: int, tied: bool) -> dict[str, Any]:
    hidden = int(fields["llama.embedding_length"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": int(fields.get("llama.rope.dimension_count", hidden // heads)),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "dtype": "float32",
        **_token_ids(fields),
    }


def _token_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    names = {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "padding": "pad_token_id",
    }
    return {
        ours: int(fields[f"tokenizer.ggml.{theirs}_token_id"])
        for theirs, ours in names.items()
        if f"tokenizer.ggml.{theirs}_token_id" in fields
    }


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if fields.get("tokenizer.ggml.pre") == "smollm"
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(fields["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        **{name.removesuffix("_id"): tokens[token] for name, token in _token_ids(fields).items()},
    }
    template = fields.get("tokenizer.chat_template")
    if template:
        settings["chat_template"] = template
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
