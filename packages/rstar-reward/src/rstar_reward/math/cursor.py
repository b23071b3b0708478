"""A position in a list of tokens, and what a parser asks about it."""

from __future__ import annotations

from rstar_reward.math.lexer import ParseError, Token

__all__ = ["Cursor"]


class Cursor:
    """Reads tokens one after another; full stops and commas at the end are dropped."""

    def __init__(self, tokens: list[Token]) -> None:
        while tokens and tokens[-1].text in (".", ","):
            tokens.pop()
        self._tokens, self._position = tokens, 0

    def peek(self, ahead: int = 0) -> Token | None:
        """The token some places ahead, None past the end."""
        index = self._position + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def is_sign(self, *texts: str, ahead: int = 0) -> bool:
        """True when that token is one of these signs."""
        token = self.peek(ahead)
        return token is not None and token.kind == "sign" and token.text in texts

    def is_macro(self, *names: str, ahead: int = 0) -> bool:
        """True when that token is one of these macros."""
        token = self.peek(ahead)
        return token is not None and token.kind == "macro" and token.text in names

    def next(self) -> Token:
        """Takes a token."""
        token = self.peek()
        if token is None:
            raise ParseError("the answer ends too early")
        self._position += 1
        return token

    def skip(self, kind: str, text: str, at_end: bool = False) -> bool:
        """Takes a token if it is this one, and the last one if so asked."""
        token = self.peek()
        if token is not None and token.kind == kind and token.text == text:
            if at_end and self._position + 1 != len(self._tokens):
                return False
            self._position += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        """Takes a sign that must be one of these."""
        token = self.next()
        if token.kind != "sign" or token.text not in texts:
            raise ParseError(f"expected {' or '.join(texts)}, found {token.text!r}")
        return token.text
