"""Normalised text to tokens."""

# ruff: noqa: SIM905 - a table of words reads better as one text

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rstar_reward.math.words import CONNECTIVES

__all__ = ["ParseError", "Token", "UnknownNotationError", "tokenize"]


class ParseError(ValueError):
    """The text is not an answer in the grammar."""


class UnknownNotationError(ParseError):
    """A macro or environment that the grammar does not have: others may know it."""


@dataclass(frozen=True)
class Token:
    """A piece of text: its kind (number, name, macro, words, sign) and what was written."""

    kind: str
    text: str
    spaced: bool = False
    """True when white space comes before it."""


GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega varpi ell hbar".split()
)
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp gcd lcm max min det sqrt cbrt asin acos "
    "atan abs floor ceil arccot".split()
)
_PLAIN_CONSTANTS = {"pi": "pi", "infinity": "infty", "inf": "infty", "oo": "infty"}
_WORD_MACROS = frozenset({"text", "textbf", "textit", "textrm", "textnormal", "mbox", "hbox", "mathrm", "operatorname",
                          "textsf", "texttt"})  # fmt: skip

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<macro>\\[a-zA-Z]+)
  | (?P<escaped>\\[^a-zA-Z])
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3}(?![0-9a-zA-Z.]))?)
  | (?P<letters>[a-zA-Z]+)
  | (?P<dots>\.\.\.+)
  | (?P<sign>[-+*/^_=<>!(){}\[\]|,;:%&'.])
    """,
    re.VERBOSE,
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_OPENING, _CLOSING = ("(", "[", "\\{"), (")", "]", "\\}")
_SPACED = re.compile(r"(?<![0-9.,] )(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?! [0-9])")


def tokenize(text: str, thousands: bool) -> list[Token]:
    """Splits normalised text.

    Args:
        text: the answer.
        thousands: read `1,234` outside brackets as one number rather than as two.

    Raises:
        ParseError: a character that has no place in an answer.
    """
    if thousands:
        text = _join_thousands(text, _THOUSANDS, ",")
    text = _join_thousands(text, _SPACED, " ")
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ParseError(f"unexpected {text[position]!r}")
        position = found.end()
        kind, piece = found.lastgroup, found.group()
        before = len(tokens)
        if kind == "space":
            spaced = True
            continue
        if kind == "macro":
            position = _macro(piece[1:], text, position, tokens)
        elif kind == "escaped":
            tokens.append(Token("sign", piece if piece in ("\\{", "\\}", "\\\\", "\\$") else piece[1:]))
        elif kind == "letters":
            _letters(piece, tokens)
        elif kind == "dots":
            tokens.append(Token("macro", "ldots"))
        else:
            tokens.append(Token(str(kind), piece))
        if spaced and len(tokens) > before:
            tokens[before] = replace(tokens[before], spaced=True)
        spaced = False
    return tokens


def _join_thousands(text: str, pattern: re.Pattern[str], separator: str) -> str:
    """Joins groups of three digits outside brackets; inside, a comma separates."""
    if not pattern.search(text):
        return text
    parts, position, depth, counted = [], 0, 0, 0
    for found in pattern.finditer(text):
        between = text[counted : found.start()]
        depth += sum(between.count(sign) for sign in _OPENING) - sum(between.count(sign) for sign in _CLOSING)
        counted = found.start()
        if depth == 0:
            parts += [text[position : found.start()], found.group().replace(separator, "")]
            position = found.end()
    return "".join([*parts, text[position:]])


def _macro(name: str, text: str, position: int, tokens: list[Token]) -> int:
    """Adds the token of a macro; returns where reading goes on."""
    if name not in _WORD_MACROS:
        tokens.append(Token("macro", name))
        return position
    opening = position + (1 if text.startswith(" ", position) else 0)
    closing = _closing(text, opening) if text.startswith("{", opening) else -1
    if closing < 0:
        raise ParseError(f"\\{name} without its braces")
    inner = text[opening + 1 : closing].strip()
    if inner in FUNCTIONS or inner in ("e", "i", "d") or (name == "mathrm" and len(inner) == 1):
        tokens.append(Token("macro" if inner in FUNCTIONS else "name", inner))
    elif re.fullmatch(r"[-+0-9.,/ ]+", inner):
        tokens += tokenize(inner, thousands=True)
    elif name in ("mathrm", "operatorname", "textbf", "textit") and re.fullmatch(r"\([A-Z]\)|[A-Z]{1,3}", inner):
        tokens.append(Token("words", inner))
    else:
        _words(inner, tokens)
    return closing + 1


def _closing(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return -1


_WORD_PART = re.compile(r",|;|[^\s,;]+")


def _words(inner: str, tokens: list[Token]) -> None:
    """Text inside a formula: connectives separate answers, the rest stays together."""
    kept: list[str] = []
    for part in _WORD_PART.findall(inner):
        lower = part.lower()
        if part in (",", ";") or lower in CONNECTIVES:
            if kept:
                tokens.append(Token("words", " ".join(kept)))
                kept = []
            tokens.append(Token("sign", part) if part in (",", ";") else Token("connective", lower))
        else:
            kept.append(part)
    if kept:
        tokens.append(Token("words", " ".join(kept)))


def _letters(piece: str, tokens: list[Token]) -> None:
    lower = piece.lower()
    if lower in CONNECTIVES:
        tokens.append(Token("connective", lower))
    elif piece in FUNCTIONS or piece in GREEK:
        tokens.append(Token("macro", piece))
    elif lower in _PLAIN_CONSTANTS and len(piece) > 1:
        tokens.append(Token("macro", _PLAIN_CONSTANTS[lower]))
    elif len(piece) == 1:
        tokens.append(Token("name", piece))
    else:
        # A word, a unit, or a product of variables: the parser knows from what is around it.
        tokens.append(Token("letters", piece))
