"""Text to token ids and back, with a wall between template text and everybody else's text.

A control token (``<|im_end|>`` and the like) may only come from our own template or from the policy itself. Text
from problems and tools is encoded by a copy of the tokenizer that does not know control tokens, so a program that
prints ``<|im_start|>`` yields ordinary tokens that spell it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from rstar_model.template import ModelTemplate, load_template
from rstar_protos.errors import UserInputError

__all__ = ["Piece", "Tokenizer", "load_tokenizer", "valid_text"]

Piece = tuple[str, bool]
"""A text and whether control-token strings in it stand for control tokens (true only for our template)."""


class Tokenizer:
    """A tokenizer of a Hugging Face folder.

    Args:
        definition: content of a ``tokenizer.json``.
        eos_tokens: texts of tokens that end a generation, as the folder's settings name them.
        folder: where it was loaded from, if anywhere.
    """

    def __init__(self, definition: str, *, eos_tokens: Iterable[str] = (), folder: Path | None = None) -> None:
        record: dict[str, Any] = json.loads(definition)
        # Padding and truncation settings would add or lose tokens.
        record["padding"] = record["truncation"] = None
        added: list[dict[str, Any]] = record.get("added_tokens") or []
        control = [token for token in added if token["special"] or token["content"].strip()]
        self.folder = folder
        self._full = tokenizers.Tokenizer.from_str(json.dumps(record))
        plain = {**record, "added_tokens": [token for token in added if token not in control]}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))
        self._control = {token["content"]: token for token in control}
        self._control_ids = frozenset(int(token["id"]) for token in control)
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = (
            re.compile("|".join(re.escape(text) for text in longest_first)) if longest_first else None
        )
        self._eos_ids = frozenset(token for text in eos_tokens if (token := self._full.token_to_id(text)) is not None)

    @cached_property
    def template(self) -> ModelTemplate | None:
        """The chat template of the folder, None if there is none."""
        return None if self.folder is None else load_template(self.folder)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, control tokens included; a model's embedding may be larger."""
        return int(self._full.get_vocab_size(with_added_tokens=True))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a generation according to the folder's settings."""
        return self._eos_ids

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that untrusted text can never become."""
        return self._control_ids

    def token_id(self, text: str) -> int | None:
        """Id of the token with exactly this text, None if there is none."""
        return self._full.token_to_id(text)

    def encode(self, text: str) -> list[int]:
        """Ids of our own text: control-token strings become their ids, nothing is added around them."""
        return list(self._full.encode(valid_text(text), add_special_tokens=False).ids)

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of anybody's text; none of them is a control token."""
        return [token for token, _ in self._encode_plain(text)]

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
        """Encode neighbouring pieces as one text, as if the whole had been rendered first.

        Text between two control tokens is encoded together whatever pieces it comes from, so the ids equal those
        of the rendered conversation; only trusted pieces can yield control tokens.

        Returns:
            The ids, and for each the index of the piece that holds its first character.
        """
        ids: list[int] = []
        owners: list[int] = []
        run: list[tuple[str, int]] = []

        def flush() -> None:
            starts: list[int] = []
            for text, piece in run:
                starts.extend([piece] * len(text))
            for token, start in self._encode_plain("".join(text for text, _ in run)):
                ids.append(token)
                owners.append(starts[start])
            run.clear()

        for index, (raw, trusted) in enumerate(pieces):
            text = valid_text(raw)
            for part, control in self._split(text) if trusted else [(text, None)]:
                if control is None:
                    run.append((part, index))
                else:
                    flush()
                    ids.append(control)
                    owners.append(index)
        flush()
        return ids, owners

    def decode(self, ids: Sequence[int], keep_special: bool = True) -> str:
        """Text of ids, control tokens visible unless ``keep_special`` is off."""
        return str(self._full.decode(list(ids), skip_special_tokens=not keep_special))

    def _split(self, text: str) -> list[tuple[str, int | None]]:
        """Cut text at control tokens as the tokenizer itself does, honouring the space they absorb."""
        if self._control_pattern is None:
            return [(text, None)]
        parts: list[tuple[str, int | None]] = []
        done = 0
        for match in self._control_pattern.finditer(text):
            token = self._control[match.group()]
            before = text[done : max(done, match.start())]
            parts.append((before.rstrip() if token["lstrip"] else before, None))
            parts.append(("", int(token["id"])))
            done = match.end()
            if token["rstrip"]:
                done += len(text) - done - len(text[done:].lstrip())
        parts.append((text[done:], None))
        return [(part, control) for part, control in parts if part or control is not None]

    def _encode_plain(self, text: str) -> list[tuple[int, int]]:
        """(id, offset of the first character) for each token; none is a control token."""
        if not text:
            return []
        text = valid_text(text)
        encoding = self._plain.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._control_ids.isdisjoint(ids):
            return [(token, min(start, len(text) - 1)) for token, (start, _) in zip(ids, encoding.offsets, strict=True)]
        # A model vocabulary may itself hold the text of a control token and reach it without any merge.
        # Cutting that text in two leaves no way to spell the control token.
        for match in self._control_pattern.finditer(text) if self._control_pattern else ():
            cut = match.start() + 1
            if match.end() - match.start() > 1:
                left = self._encode_plain(text[:cut])
                return left + [(token, start + cut) for token, start in self._encode_plain(text[cut:])]
        unsafe = sorted(self._control_ids.intersection(ids))
        raise UserInputError("tokenizer", f"ordinary text becomes control tokens {unsafe}", "a byte-level tokenizer")


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    End tokens are taken from ``generation_config.json``, ``config.json`` and ``tokenizer_config.json``.

    Raises:
        UserInputError: the folder has no usable ``tokenizer.json``.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    accepted = "a Hugging Face model folder with tokenizer.json (rstar-model fetch makes one)"
    if not path.is_file():
        found = f"{folder} (no tokenizer.json in it)" if folder.is_dir() else f"{folder} (no such folder)"
        raise UserInputError("model folder", found, accepted)
    definition = path.read_text(encoding="utf-8")
    try:
        bare = Tokenizer(definition, folder=folder)
        eos = {text for text in _eos_texts(folder, bare) if text}
        return Tokenizer(definition, eos_tokens=sorted(eos), folder=folder)
    except UserInputError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for a bad definition
        raise UserInputError("tokenizer.json", f"{path}: {error}", accepted) from error


def _eos_texts(folder: Path, tokenizer: Tokenizer) -> Iterable[str]:
    for name in ("generation_config.json", "config.json"):
        declared = _read_json(folder / name).get("eos_token_id")
        for token in declared if isinstance(declared, list) else [declared]:
            if isinstance(token, int):
                yield tokenizer.decode([token])
    declared = _read_json(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(declared, dict):
        declared = declared.get("content")
    if isinstance(declared, str):
        yield declared


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    return record if isinstance(record, dict) else {}


def valid_text(text: str) -> str:
    """The text with unpaired surrogates, which no tokenizer can encode, replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
