r"""The smallest parts of answers: names, brackets, `\frac` and `\sqrt`, functions, matrices."""

from __future__ import annotations

from fractions import Fraction

from rstar_reward.math import nodes as n
from rstar_reward.math.building import as_base, items_of, literal, signed, times
from rstar_reward.math.cursor import Cursor
from rstar_reward.math.lexer import FUNCTIONS, GREEK, ParseError, Token, UnknownNotationError

__all__ = ["DECORATED", "AtomParser"]

_MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"})
DECORATED = frozenset({"angle", "triangle", "overline", "vec", "hat", "bar", "tilde", "overrightarrow", "widehat",
                        "mathcal", "mathfrak", "measuredangle"})  # fmt: skip
_NUMBER_SETS = {"R": "Reals", "Z": "Integers", "N": "Naturals", "Q": "Rationals", "C": "Complexes"}
_NAMED_FUNCTIONS = frozenset("fghFGHP")
_SAME_FUNCTION = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_MAX_PRODUCT_LETTERS = 4


class AtomParser(Cursor):
    """Reads atoms; what stands between them is read by the parser that derives from it."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        # Depth of |...|: inside, a bar closes.
        self._bars = 0
        # Inside a set, a bar separates elements from their condition.
        self._bar_separates = False

    def answer(self) -> n.Node:
        """A list of items."""
        raise NotImplementedError

    def item(self) -> n.Node:
        """One member of a list."""
        raise NotImplementedError

    def sum(self) -> n.Node:
        """Terms added up."""
        raise NotImplementedError

    def factor(self) -> n.Node:
        """An atom and what follows it: powers, factorials, units."""
        raise NotImplementedError

    def read_sign(self) -> str:
        """Signs before a term, as one."""
        raise NotImplementedError

    def read_power(self, base: n.Node) -> n.Node:
        """What follows a caret."""
        raise NotImplementedError

    def mixed_number(self) -> n.Node | None:
        """A whole number with a fraction, None when there is none."""
        raise NotImplementedError

    def starts_factor(self) -> bool:
        """True when another factor follows without a sign."""
        raise NotImplementedError

    def group(self) -> n.Node:
        """What is in braces."""
        self.expect("{")
        node = self.answer()
        self.expect("}")
        return node

    def argument(self) -> n.Node:
        r"""The argument of `\frac` and the like: a group, or one digit or letter."""
        token = self.peek()
        if token is None:
            raise ParseError("an argument is missing")
        if token.kind == "sign" and token.text == "{":
            return self.group()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self._tokens[self._position] = Token("number", token.text[1:])
            return literal(token.text[0])
        if token.kind == "letters":
            self._tokens[self._position] = Token("name" if len(token.text) == 2 else "letters", token.text[1:])
            return n.Symbol(token.text[0])
        return self.atom()

    def atom(self) -> n.Node:
        """A name, number, bracket or macro with its arguments."""
        token = self.next()
        if token.kind == "number":
            return self._number(token.text)
        if token.kind == "name":
            return self._name(token.text)
        if token.kind == "letters":
            return self._letters(token.text)
        if token.kind == "words":
            return n.Words(token.text)
        if token.kind == "macro":
            return self._macro(token.text)
        if token.kind == "sign":
            return self._bracketed(token.text)
        raise ParseError(f"unexpected {token.text!r}")

    def _number(self, text: str) -> n.Node:
        if "." in text and self.is_macro("overline"):
            self.next()
            repeated = self.argument()
            period = self._tokens[self._position - 2].text if self.is_sign("}", ahead=-1) else ""
            if not isinstance(repeated, n.Number) or not period.isdigit():
                raise ParseError("a repeating decimal without digits")
            start = literal(text)
            places = len(text.partition(".")[2])
            tail = Fraction(int(period), 10 ** len(period) - 1) / 10**places
            return n.Number(start.value + tail)
        if self.is_sign("_") and text.isdigit():
            self.next()
            base = self._subscript()
            return n.Based(text, as_base(base))
        return literal(text)

    def _name(self, name: str) -> n.Node:
        if self.is_sign("_"):
            self.next()
            name = f"{name}_{self._subscript()}"
        token = self.peek()
        if name[0] in _NAMED_FUNCTIONS and self.is_sign("(") and token is not None and not token.spaced:
            self.next()
            inner = self.answer()
            self.expect(")")
            return n.Call(name, items_of(inner))
        return n.Symbol(name)

    def _letters(self, text: str) -> n.Node:
        if text.isupper():
            return n.Symbol(text)
        if len(text) > _MAX_PRODUCT_LETTERS or not text.islower():
            return n.Words(text)
        # The last letter takes what follows: xy^2 is x y^2.
        first, last = text[:-1], text[-1]
        self._position -= 1
        self._tokens[self._position] = Token("name", last)
        return n.Product((*(n.Symbol(letter) for letter in first), self.factor()))

    def _subscript(self) -> str:
        """A subscript as text: it is part of a name."""
        token = self.next()
        if token.text != "{":
            return token.text
        parts: list[str] = []
        depth = 1
        while True:
            token = self.next()
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "sign" else 0
            if depth == 0:
                return "".join(parts)
            parts.append(token.text)

    def _macro(self, name: str) -> n.Node:
        if name == "frac":
            return n.Quotient(self.argument(), self.argument())
        if name == "binom":
            return n.Function("binom", (self.argument(), self.argument()))
        if name in ("sqrt", "cbrt"):
            return self._root(name)
        if name in FUNCTIONS:
            return self._function(_SAME_FUNCTION.get(name, name))
        if name in GREEK:
            return self._name(name)
        if name in ("pi", "infty", "emptyset"):
            return n.Symbol({"infty": "inf"}.get(name, name))
        if name == "ldots":
            return n.Ellipsis()
        if name == "mathbb":
            letter = self._subscript()
            return n.Symbol(_NUMBER_SETS.get(letter, letter))
        if name in ("lfloor", "lceil"):
            inner = self.sum()
            if not self.is_macro({"lfloor": "rfloor", "lceil": "rceil"}[name]):
                raise ParseError(f"\\{name} is not closed")
            self.next()
            return n.Function({"lfloor": "floor", "lceil": "ceil"}[name], (inner,))
        if name == "begin":
            return self._matrix()
        if name in DECORATED:
            return n.Symbol(f"{name} {self._subscript()}")
        if name == "langle":
            inner = self.answer()
            if not self.is_macro("rangle"):
                raise ParseError("\\langle is not closed")
            self.next()
            return n.Sequence("(", ")", items_of(inner))
        raise UnknownNotationError(f"\\{name} is not known")

    def _root(self, name: str) -> n.Node:
        index: n.Node = n.Number(Fraction(3 if name == "cbrt" else 2))
        if self.is_sign("["):
            self.next()
            index = self.sum()
            self.expect("]")
        if self.is_sign("("):
            self.next()
            radicand = self.sum()
            self.expect(")")
        else:
            radicand = self.argument()
        return n.Root(radicand, index)

    def _function(self, name: str) -> n.Node:
        base: n.Node | None = None
        exponent: n.Node | None = None
        while True:
            if self.is_sign("_") and base is None:
                self.next()
                base = self.argument()
            elif self.is_sign("^") and exponent is None:
                self.next()
                power = self.read_power(n.Symbol("?"))
                exponent = power.exponent if isinstance(power, n.Power) else None
                if exponent is None:
                    raise ParseError("a function of degrees")
            else:
                break
        arguments = self._function_arguments()
        if name == "log" and base is not None:
            arguments = (*arguments, base)
        elif base is not None:
            raise ParseError(f"{name} has no subscript")
        if exponent == n.Number(Fraction(-1)):
            return n.Function(f"arc{name}", arguments)
        node: n.Node = n.Function(name, arguments)
        return node if exponent is None else n.Power(node, exponent)

    def _function_arguments(self) -> tuple[n.Node, ...]:
        if self.is_sign("(", "{"):
            closing = {"(": ")", "{": "}"}[self.next().text]
            inner = self.answer()
            self.expect(closing)
            return items_of(inner)
        sign = self.read_sign()
        node = self.factor()
        while self.starts_factor():
            token = self.peek()
            if token is None or token.text in FUNCTIONS - {"sqrt"} or self.is_sign("(", "["):
                break
            node = times(node, self.factor())
        return (signed(sign, node),)

    def _bracketed(self, opening: str) -> n.Node:
        if opening == "{":
            self._position -= 1
            return self.group()
        if opening == "\\{":
            return self._set()
        if opening == "|":
            self._bars += 1
            inner = self.sum()
            self._bars -= 1
            self.expect("|")
            return n.Function("abs", (inner,))
        if opening == "\\$" or opening == "$":
            value = self.mixed_number() or self.factor()
            return n.Measured(value, "$")
        if opening not in ("(", "["):
            raise ParseError(f"unexpected {opening!r}")
        bars, self._bars = self._bars, 0
        inner = self.answer()
        self._bars = bars
        closing = self.expect(")", "]")
        items = items_of(inner)
        matched = (opening, closing) in (("(", ")"), ("[", "]"))
        if len(items) == 1 and matched and not isinstance(inner, n.Relation):
            base = items[0]
            if self.is_sign("_") and isinstance(base, n.Number) and base.decimals is None:
                self.next()
                return n.Based(str(base.value), as_base(self._subscript()))
            return base
        return n.Sequence(opening, closing, items)

    def _set(self) -> n.Node:
        if self.is_sign("\\}"):
            self.next()
            return n.Symbol("emptyset")
        self._bar_separates = True
        first = self.answer()
        self._bar_separates = False
        if self.is_sign("|"):
            self.next()
            condition = self.answer()
            self.expect("\\}")
            return condition
        self.expect("\\}")
        return n.Sequence("\\{", "\\}", items_of(first))

    def _matrix(self) -> n.Node:
        if self._subscript() not in _MATRICES:
            raise UnknownNotationError("an environment that is no matrix")
        if self.is_sign("{"):  # the columns of an array
            self._subscript()
        rows: list[tuple[n.Node, ...]] = []
        row: list[n.Node] = []
        while not self.is_macro("end"):
            row.append(self.item())
            if self.is_sign("&"):
                self.next()
            else:
                rows.append(tuple(row))
                row = []
                if self.is_sign("\\\\"):
                    self.next()
                elif not self.is_macro("end"):
                    raise ParseError("a matrix that does not end")
        self.next()
        self._subscript()
        if not rows or len({len(entries) for entries in rows}) != 1:
            raise ParseError("a matrix with uneven rows")
        return n.Matrix(tuple(rows))
