"""Answers in words, and choice letters."""

from __future__ import annotations

import re

__all__ = ["CONNECTIVES", "choice_letter", "plain_words", "same_words"]

CONNECTIVES = frozenset({"and", "or"})

_TEXT_MACRO = re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|mbox|hbox|mathrm|operatorname) ?(?![a-zA-Z])")
_WORDS = re.compile(r"[^\W\d_][\w'\-]*(?:[ ,.]+[^\W\d_][\w'\-]*)*[.!]?", re.UNICODE)


def plain_words(normalised: str) -> str | None:
    """The words of an answer that consists of words alone, in one spelling; None for anything else."""
    text = " ".join(_TEXT_MACRO.sub(" ", normalised).replace("{", " ").replace("}", " ").split())
    text = text.strip(" .!")
    letters = sum(character.isalpha() for character in text)
    if letters < 2 or "\\" in text or not _WORDS.fullmatch(text):
        return None
    return " ".join(re.sub(r"[,.'\-]", " ", text).casefold().split())


def same_words(one: str, other: str) -> bool:
    """True for the same words, articles at the start apart."""
    return _without_article(one) == _without_article(other)


def _without_article(text: str) -> str:
    first, _, rest = text.partition(" ")
    return rest if rest and first in ("the", "a", "an") else text


_CHOICE = re.compile(r"\(? ?([A-J]) ?\)?[.:]?")
_CHOICE_WITH_TEXT = re.compile(r"(?:\( ?([A-J]) ?\)[:.]? |([A-J]) ?[):.] ?)([^-+*/=^_].*)")
_OTHER_CHOICE = re.compile(r"\( ?[A-J] ?\)|\b(?:and|or|not|nor)\b|(?<![A-Za-z])[A-J](?: ?[).,]|$)")


def choice_letter(normalised: str) -> str | None:
    """The letter of a multiple-choice answer: `B`, `(B)`, `B.`, or with the choice's text, `(B) 42`."""
    text = " ".join(_TEXT_MACRO.sub(" ", normalised).replace("{", " ").replace("}", " ").split())
    if found := _CHOICE.fullmatch(text):
        return found[1]
    found = _CHOICE_WITH_TEXT.fullmatch(text)
    if found and not _OTHER_CHOICE.search(found[3]):
        return found[1] or found[2]
    return None
