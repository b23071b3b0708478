"""What an answer is once it has been read: a small tree of immutable nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction

__all__ = [
    "Based", "Call", "Ellipsis", "Function", "Matrix", "Measured", "Node", "Number", "Operation", "PlusMinus",
    "Power", "Product", "Quotient", "Ratio", "Relation", "Root", "Sequence", "SetOperation", "Sum", "Symbol",
    "Words", "children", "rebuilt", "walk",
]  # fmt: skip


@dataclass(frozen=True)
class Node:
    """Any part of an answer."""


@dataclass(frozen=True)
class Number(Node):
    """A literal, exact."""

    value: Fraction
    decimals: int | None = None
    """Digits after the point where it was written as a decimal."""
    significant: int = 0


@dataclass(frozen=True)
class Symbol(Node):
    """A variable, a named point, or a constant: `pi`, `e`, `i`, `inf`, `R`, `emptyset` among them."""

    name: str


@dataclass(frozen=True)
class Words(Node):
    """Text that is no mathematics."""

    text: str


@dataclass(frozen=True)
class Sum(Node):
    """Terms added up."""

    terms: tuple[Node, ...]


@dataclass(frozen=True)
class Product(Node):
    """Factors multiplied."""

    factors: tuple[Node, ...]


@dataclass(frozen=True)
class Quotient(Node):
    """A fraction."""

    above: Node
    below: Node


@dataclass(frozen=True)
class Power(Node):
    """A power."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Root(Node):
    """A root; of a negative number and odd index, the real one."""

    radicand: Node
    index: Node


@dataclass(frozen=True)
class Function(Node):
    """A known function of its arguments."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Call(Node):
    """A function that is only named: f(2)."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class PlusMinus(Node):
    """One term with either sign; `opposite` for minus-plus."""

    term: Node
    opposite: bool = False


@dataclass(frozen=True)
class Measured(Node):
    """A value with a unit: degrees, percent, centimetres."""

    value: Node
    unit: str


@dataclass(frozen=True)
class Based(Node):
    """Digits in a stated base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Sequence(Node):
    r"""Several answers: bare (`opening` is ""), `(`, `[` or `\{`; intervals are sequences of two."""

    opening: str
    closing: str
    items: tuple[Node, ...]
    alternatives: bool = False
    """True when a bare one is joined by "or"."""


@dataclass(frozen=True)
class Ellipsis(Node):
    """Dots in a sequence."""


@dataclass(frozen=True)
class Ratio(Node):
    """Parts separated by colons."""

    parts: tuple[Node, ...]
    clock: bool = False
    """True when it looks like a time of day."""


@dataclass(frozen=True)
class Relation(Node):
    """A chain of operands and the signs between them: `=`, `<`, `<=`, `>`, `>=`, `!=`, `~`, `in`."""

    operands: tuple[Node, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class SetOperation(Node):
    r"""Sets joined by one of `cup`, `cap`, `setminus`."""

    sign: str
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Matrix(Node):
    """Rows of entries."""

    rows: tuple[tuple[Node, ...], ...]


Operation = Sum | Product | Quotient | Power | Root | Function | Measured


def walk(node: Node) -> Iterator[Node]:
    """The node and all nodes below it."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(children(current))


def children(node: Node) -> Iterator[Node]:
    """The nodes right below a node."""
    for field in fields(node):
        yield from _nodes_in(getattr(node, field.name))


def _nodes_in(value: object) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _nodes_in(item)


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to each node right below it, in order."""

    def changed(value: object) -> object:
        if isinstance(value, Node):
            return change(value)
        if isinstance(value, tuple):
            return tuple(changed(item) for item in value)
        return value

    values = {field.name: changed(getattr(node, field.name)) for field in fields(node)}
    return replace(node, **values)
