"""A tiny tokenizer and a tiny model, made on the spot: no test here downloads anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from rstar_model.testing import FAMILIES, write_family
from rstar_model.tokenizer import Tokenizer, load_tokenizer

# How fast a shared machine runs an example is no property of the code.
settings.register_profile("rstar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rstar")

CORPUS = [
    "What is 2 + 2? The answer is 4. Put it in <answer> tags as \\boxed{4}.",
    '<tool_call>{"name": "execute", "arguments": {"code": "print(2 + 2)\\n"}}</tool_call>',
    "<tool_response>\n4\n</tool_response> Traceback (most recent call last): ZeroDivisionError",
    "<reason> we compute the sum of the numbers from 1 to 100 with a loop </reason>",
] * 4

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture
def tiny_llama(tokenizer: Tokenizer) -> Any:
    """A random Llama model for the tiny tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture
def model_folder(tmp_path: Path, tiny_llama: Any, tokenizer_folder: Path) -> Path:
    """A Hugging Face folder of the tiny model with its tokenizer."""
    folder = tmp_path / "model"
    tiny_llama.save_pretrained(folder)
    for path in tokenizer_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def gguf_file(tiny_llama: Any, tokenizer_folder: Path) -> Callable[..., None]:
    """Writes the tiny model as a GGUF file: ``gguf_file(path)``."""

    def write(path: Path, architecture: str = "llama") -> None:
        write_gguf(path, tiny_llama, tokenizer_folder, architecture)

    return write


def write_gguf(path: Path, model: Any, tokenizer_folder: Path, architecture: str) -> None:
    """As the usual converter does: rows of q and k in GGUF's order; unquantised."""
    import gguf

    config = model.config
    definition = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    vocabulary = sorted(definition["model"]["vocab"], key=definition["model"]["vocab"].get)
    control = {token["content"] for token in definition["added_tokens"]}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in control else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in definition["model"]["merges"]])
    writer.add_eos_token_id(vocabulary.index("<|im_end|>"))
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in model.named_parameters():
        stem = name.removesuffix(".weight")
        data = tensor.detach().numpy()
        if stem.startswith("model.layers."):
            number, _, stem = stem.removeprefix("model.layers.").partition(".")
            if stem.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads
                rows, columns = data.shape
                halves = data.reshape(heads, 2, rows // heads // 2, columns)
                data = halves.swapaxes(1, 2).reshape(rows, columns).copy()
            writer.add_tensor(f"blk.{number}.{names[stem]}.weight", data)
        else:
            writer.add_tensor(f"{names[stem]}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Tokenizers, each with its family's chat template, by the name of the family."""
    root = tmp_path_factory.mktemp("families")
    return {name: load_tokenizer(write_family(root / name, name)) for name in FAMILIES}
