r"""A grammar of answers: normalised text to a tree, by recursive descent.

Reads the LaTeX and the plain text that answers are written in: numbers, expressions, relations, lists, sets,
intervals, tuples, matrices, units. What it cannot read it refuses; nothing is ever evaluated here.
"""

from __future__ import annotations

from fractions import Fraction

from rstar_reward.math import nodes as n
from rstar_reward.math.atoms import DECORATED, AtomParser
from rstar_reward.math.building import as_list, literal, primed, signed, times
from rstar_reward.math.lexer import FUNCTIONS, GREEK, ParseError, UnknownNotationError, tokenize
from rstar_reward.math.units import SCALES, known_unit

__all__ = ["parse_answer"]

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "leq": "<=", "geq": ">=", "neq": "!=", "approx": "~", "in": "in", "simeq": "~",
}  # fmt: skip


def parse_answer(text: str, thousands: bool = True) -> n.Node:
    """Reads a normalised answer.

    Args:
        text: the answer.
        thousands: read `1,234` outside brackets as one number rather than as two.

    Raises:
        ParseError: it is not in the grammar.
    """
    parser = _Parser(tokenize(text, thousands))
    parser.skip("sign", ".", at_end=True)
    node = parser.answer()
    following = parser.peek()
    if following is not None:
        kind = UnknownNotationError if following.kind == "macro" else ParseError
        raise kind(f"unexpected {following.text!r}")
    return node


class _Parser(AtomParser):
    # Lists and relations.

    def answer(self) -> n.Node:
        outer: list[n.Node] = []
        inner: list[n.Node] = []
        alternatives = False
        while True:
            inner.append(self.item())
            token = self.peek()
            if token is not None and token.kind == "connective":
                self.next()
                alternatives = alternatives or token.text == "or"
            elif self.is_sign(","):
                self.next()
                following = self.peek()
                if following is not None and following.kind == "connective":
                    self.next()
                    alternatives = alternatives or following.text == "or"
            elif self.is_sign(";"):
                self.next()
                outer.append(as_list(inner, alternatives))
                inner = []
            else:
                break
        if not outer:
            return as_list(inner, alternatives)
        outer.append(as_list(inner, alternatives))
        return as_list(outer, alternatives)

    def item(self) -> n.Node:
        operands = [self.sets()]
        signs: list[str] = []
        while (token := self.peek()) is not None:
            sign = _RELATIONS.get(token.text) if token.kind in ("sign", "macro") else None
            if sign is None:
                break
            self.next()
            signs.append(sign)
            operands.append(self.sets())
        return n.Relation(tuple(operands), tuple(signs)) if signs else operands[0]

    def sets(self) -> n.Node:
        node = self.ratio()
        while True:
            if self.is_macro("cup", "cap", "setminus"):
                sign = self.next().text
            elif isinstance(node, (n.Sequence, n.SetOperation)) and self._is_union_letter():
                self.next()
                sign = "cup"
            else:
                return node
            right = self.ratio()
            if isinstance(node, n.SetOperation) and node.sign == sign and sign != "setminus":
                node = n.SetOperation(sign, (*node.operands, right))
            else:
                node = n.SetOperation(sign, (node, right))

    def _is_union_letter(self) -> bool:
        token = self.peek()
        return token is not None and token.kind == "name" and token.text in ("U", "u")

    def ratio(self) -> n.Node:
        start = self._position
        parts = [self.sum()]
        while self.is_sign(":"):
            self.next()
            parts.append(self.sum())
        if len(parts) == 1:
            return parts[0]
        written = [token.text for token in self._tokens[start : self._position]]
        clock = len(written) == 3 and len(written[0]) <= 2 and written[0].isdigit() and len(written[2]) == 2
        return n.Ratio(tuple(parts), clock and written[2].isdigit())

    # Arithmetic.

    def sum(self) -> n.Node:
        terms: list[n.Node] = []
        sign = self.read_sign()
        while True:
            term = self.term()
            terms.append(signed(sign, term))
            if not (self.is_sign("+", "-") or self.is_macro("pm", "mp")):
                return terms[0] if len(terms) == 1 else n.Sum(tuple(terms))
            sign = self.read_sign()

    def read_sign(self) -> str:
        sign = "+"
        while True:
            if self.is_sign("+", "-"):
                if self.next().text == "-":
                    sign = {"+": "-", "-": "+", "pm": "mp", "mp": "pm"}[sign]
            elif self.is_macro("pm", "mp"):
                sign = self.next().text
            else:
                return sign

    def term(self) -> n.Node:
        node = self.mixed_number() or self.factor()
        while True:
            if self.is_sign("*") or self.is_macro("times", "cdot"):
                self.next()
                node = times(node, self._signed_factor())
            elif self.is_sign("/") or self.is_macro("div"):
                self.next()
                node = n.Quotient(node, self._signed_factor())
            elif (measured := self._measured(node)) is not None:
                node = measured
            elif self.starts_factor():
                following = self.peek()
                if following is not None and following.kind == "number":
                    raise ParseError("two numbers side by side")
                node = times(node, self.factor())
            else:
                return node

    def _signed_factor(self) -> n.Node:
        sign = self.read_sign()
        return signed(sign, self.mixed_number() or self.factor())

    def mixed_number(self) -> n.Node | None:
        r"""`2\frac{1}{2}` and `11 5/6`, with a proper fraction; None when it is something else."""
        whole, following = self.peek(), self.peek(1)
        if whole is None or following is None or whole.kind != "number" or not whole.text.isdigit():
            return None
        start = self._position
        if following.kind == "macro" and following.text == "frac":
            self.next()
            self.next()
            above, below = self.argument(), self.argument()
        elif following.kind == "number" and following.spaced and self.is_sign("/", ahead=2):
            self.next()
            above = literal(self.next().text)
            self.next()
            token = self.next()
            if token.kind != "number":
                raise ParseError("two numbers side by side")
            below = literal(token.text)
        else:
            return None
        if isinstance(above, n.Number) and isinstance(below, n.Number):
            assert isinstance(above, n.Number)
            assert isinstance(below, n.Number)
            if below.value and 0 < above.value < below.value:
                return n.Number(literal(whole.text).value + above.value / below.value)
            if following.kind == "number":
                raise ParseError("two numbers side by side")
        self._position = start
        return None

    def starts_factor(self) -> bool:
        token = self.peek()
        if token is None:
            return False
        if token.kind in ("number", "name", "letters"):
            return True
        if token.kind == "sign":
            if token.text == "|":
                return not self._bars and not self._bar_separates
            return token.text in ("(", "{", "[")
        if token.kind == "macro":
            known = token.text in FUNCTIONS or token.text in GREEK or token.text in DECORATED
            return known or token.text in ("frac", "binom", "pi", "infty", "lfloor", "lceil", "begin", "mathbb")
        return False

    def factor(self) -> n.Node:
        node = self.atom()
        while True:
            if self.is_sign("^"):
                self.next()
                node = self.read_power(node)
            elif self.is_sign("!"):
                self.next()
                node = n.Function("factorial", (node,))
            elif self.is_sign("%"):
                self.next()
                node = n.Measured(node, "%")
            elif self.is_sign("'") and isinstance(node, (n.Symbol, n.Call)):
                self.next()
                node = primed(node)
            else:
                return node

    def read_power(self, base: n.Node) -> n.Node:
        if self.is_macro("circ"):
            self.next()
            return self._degrees(base)
        if self.is_sign("{") and self.is_macro("circ", ahead=1) and self.is_sign("}", ahead=2):
            self._position += 3
            return self._degrees(base)
        if self.is_macro("prime"):
            self.next()
            return primed(base)
        if self.is_sign("{") and self.is_macro("prime", ahead=1) and self.is_sign("}", ahead=2):
            self._position += 3
            return primed(base)
        if self.is_sign("{"):
            return n.Power(base, self.group())
        sign = self.read_sign()
        token = self.peek()
        if token is not None and token.kind == "number":
            self.next()
            return n.Power(base, signed(sign, literal(token.text)))
        exponent = self.atom()
        if self.is_sign("^"):  # powers associate to the right
            self.next()
            exponent = self.read_power(exponent)
        return n.Power(base, signed(sign, exponent))

    def _degrees(self, base: n.Node) -> n.Node:
        token = self.peek()
        if token is not None and token.text in ("C", "F"):
            self.next()
            return n.Measured(base, f"°{token.text.lower()}")
        return n.Measured(base, "°")

    # Units.

    def _measured(self, node: n.Node) -> n.Node | None:
        """A unit after a value, as long a one as is known; unknown words only inside text."""
        token = self.peek()
        if token is None or token.kind not in ("words", "letters", "name"):
            return None
        if token.kind == "name" and not isinstance(node, n.Number):
            return None
        start, best, best_end = self._position, "", self._position
        text, end = "", start
        while (piece := self.peek(end - start)) is not None:
            digit = self.peek(end - start + 1)
            if piece.kind in ("words", "letters", "name"):
                text += (" " if text and piece.spaced else "") + piece.text
                end += 1
            elif piece.text == "/" and text:
                text += "/"
                end += 1
                continue
            elif piece.text == "^" and text and digit is not None:
                closed = digit.text == "{"
                number = self.peek(end - start + 2) if closed else digit
                if number is None or number.kind != "number":
                    break
                text += f"^{number.text}"
                end += 4 if closed else 2
            else:
                break
            if text.casefold() in SCALES or known_unit(text) is not None:
                best, best_end = text, end
        plain_letter = token.kind == "name" and len(best) == 1
        if best and not plain_letter:
            self._position = best_end
            scale = SCALES.get(best.casefold())
            return times(node, n.Number(Fraction(scale))) if scale else n.Measured(node, best)
        if token.kind == "words":
            self.next()
            return n.Measured(node, token.text)
        return None
