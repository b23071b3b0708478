"""Tiny model folders, without weights, that have what tokenizers and templates of well-known families have.

For tests of whatever builds on chat formats: real tokenizers are megabytes and need a download. A folder has the
family's control tokens (and which of them are "special"), its way of splitting text, normalisation and end tokens,
and a chat template with the structure of the family's own, in other words. Vocabularies are byte-level with a few
hundred merges.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

__all__ = ["FAMILIES", "write_family"]

_CORPUS = (
    "What is 2 + 2? The answer is 4. Put it in <answer> tags as \\boxed{4}.\n\n",
    '{"name": "execute", "arguments": {"code": "print(2 + 2)\\n"}}',
    "\n4\n\n Traceback (most recent call last): ZeroDivisionError user assistant system tool\n",
    "we compute the sum of the numbers from 1 to 100 with a loop, caf\N{LATIN SMALL LETTER E WITH ACUTE}\n\n",
)
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TOOL_TAGS = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class _Family:
    special: tuple[str, ...]
    ordinary: tuple[str, ...] = ()
    """Added tokens that are not marked special: they stay visible when special tokens are hidden."""
    digits: str = ""
    composes: bool = False
    """Text is brought to Unicode's composed form (NFC)."""
    begin: str = ""
    """Put before every text by the tokenizer's own post-processing, which rollouts never use."""
    end: str = "<|im_end|>"


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_FAMILIES = {
    "qwen3": _Family(
        _CHATML, (*_TOOL_TAGS, "<tool_response>", "</tool_response>", "<think>", "</think>"), composes=True
    ),
    "qwen2.5": _Family(_CHATML, _TOOL_TAGS, composes=True),
    "llama-3": _Family(
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ),
        digits="{1,3}",
        begin="<|begin_of_text|>",
        end="<|eot_id|>",
    ),
    "smollm2": _Family(_CHATML),
}

FAMILIES = tuple(_FAMILIES)
"""Names that `write_family` takes; each is also the name of a chat format."""


def write_family(folder: Path, name: str) -> Path:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` of a family; returns the folder.

    Raises:
        KeyError: no such family.
    """
    family = _FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if family.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS % family.digits), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.ordinary])
    if family.begin:
        begin = (family.begin, tokenizer.token_to_id(family.begin))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{family.begin} $A", special_tokens=[begin])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": family.end, "bos_token": family.begin or None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    template = resources.files(__name__) / f"{name}.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    return folder
