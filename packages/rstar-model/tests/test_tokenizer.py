from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_protos.errors import UserInputError

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# Text that tries to become control tokens: whole and broken control strings beside anything else.
hostile = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "<|", "|>", "<", "\n", " "]) | st.text(max_size=4), max_size=10
).map("".join)


any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(text=hostile)
def test_untrusted_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode_untrusted(text))


@given(text=hostile)
def test_untrusted_text_is_not_lost(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode_untrusted(text)) == text


@given(text=hostile)
def test_our_text_gives_the_ids_of_the_plain_library(tokenizer: Tokenizer, text: str) -> None:
    ids, owners = tokenizer.encode_pieces([(text, True)])
    assert ids == tokenizer.encode(text)
    assert set(owners) <= {0}


@given(parts=st.lists(hostile, max_size=5))
def test_pieces_are_encoded_as_one_text(tokenizer: Tokenizer, parts: list[str]) -> None:
    # A control string made by joining two pieces of ours is no control token; keep borders clear of that.
    parts = [part + " " for part in parts]
    ids, owners = tokenizer.encode_pieces([(part, True) for part in parts])
    assert ids == tokenizer.encode("".join(parts))
    assert owners == sorted(owners)


@given(parts=st.lists(st.tuples(hostile, st.booleans()), max_size=6))
def test_only_trusted_pieces_yield_control_tokens(tokenizer: Tokenizer, parts: list[tuple[str, bool]]) -> None:
    ids, owners = tokenizer.encode_pieces(parts)
    assert tokenizer.decode(ids) == "".join(text for text, _ in parts)
    assert all(parts[owner][1] for token, owner in zip(ids, owners, strict=True) if token in tokenizer.control_ids)


@given(text=any_text)
def test_decoding_inverts_encoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unpaired_surrogates_are_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode_untrusted("a\ud800b")) == "a\N{REPLACEMENT CHARACTER}b"


def test_control_tokens_show_unless_hidden(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>")
    assert tokenizer.decode(ids) == "a<|im_end|>"
    assert tokenizer.decode(ids, keep_special=False) == "a"


def test_end_tokens_come_from_all_settings_of_the_folder(tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((tokenizer_folder / "tokenizer.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert load_tokenizer(tmp_path).eos_ids == {0, 1, 2}


def test_a_vocabulary_that_spells_a_control_token_is_safe(tokenizer: Tokenizer) -> None:
    """With ignore_merges a word of the vocabulary is taken whole: splitting it is the only way out."""
    definition = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 1,
                "content": "<eot>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {"a": 0, "<eot>": 1, "<": 2, "e": 3, "o": 4, "t": 5, ">": 6},
            "merges": [],
        },
    }
    tricky = Tokenizer(json.dumps(definition))
    assert tricky.encode("<eot>") == [1]
    assert tricky.encode_untrusted("<eot>") == [2, 3, 4, 5, 6]


def test_control_tokens_that_absorb_space_do_so_here_too(tokenizer_folder: Path) -> None:
    definition = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    for token in definition["added_tokens"]:
        token["rstrip"] = token["lstrip"] = True
    absorbing = Tokenizer(json.dumps(definition))
    for text in ("a <|im_end|> \n b", "<|im_start|> <|im_end|>", " <|im_end|>", "x<|im_end|>  "):
        assert absorbing.encode_pieces([(text, True)])[0] == absorbing.encode(text)


def test_padding_and_truncation_settings_are_ignored(tokenizer_folder: Path) -> None:
    definition = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    definition["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    limited = Tokenizer(json.dumps(definition))
    assert limited.decode(limited.encode("a long text of many tokens")) == "a long text of many tokens"


def test_a_folder_without_tokenizer_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserInputError, match="no such folder"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_damaged_tokenizer_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(UserInputError):
        load_tokenizer(tmp_path)
