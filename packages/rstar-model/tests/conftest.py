"""A tiny tokenizer and a tiny model, made on the spot: no test here downloads anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

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
