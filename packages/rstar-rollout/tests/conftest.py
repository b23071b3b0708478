"""A tiny random Llama with a byte-level tokenizer, and the chat format over it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer, load_tokenizer

sys.path.insert(0, str(Path(__file__).parent / "support"))

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(folder: Path) -> None:
    """One token per byte, then the control tokens."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})
    )


def write_model(folder: Path, seed: int = 0, scale: float = 1.0) -> Path:
    """A Llama of two layers with grouped-query attention and tied embeddings, weights from a seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=258,
        bos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=True,
        initializer_range=0.2 * scale,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Same shape, other weights."""
    return write_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def chat_format() -> ChatFormat:
    return ChatFormat.load("rstar")


Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait for a state that nothing announces; the test's own timeout bounds the wait."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110  other processes and threads set it
            await asyncio.sleep(0.001)

    return wait
