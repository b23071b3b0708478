"""The full comparison of a reference answer with an extracted one. Runs in worker processes only.

Structure is compared by our own rules (lists, tuples, sets, intervals, relations, units), the leaves by value. What our
grammar cannot read goes to math-verify, whose yes still has to pass a veto.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import product

from rstar_reward.math import nodes as n
from rstar_reward.math.guards import too_complex
from rstar_reward.math.lexer import ParseError, UnknownNotationError
from rstar_reward.math.measures import same_measured
from rstar_reward.math.normalise import normalise
from rstar_reward.math.parser import parse_answer
from rstar_reward.math.rationals import NoValueError, TooLargeError
from rstar_reward.math.readings import ContradictionError, Reading, read
from rstar_reward.math.regions import same_region, to_region
from rstar_reward.math.values import same_zeros
from rstar_reward.math.words import choice_letter, plain_words, same_words
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["compare", "unusable_gold"]

_MAX_UNORDERED = 60
_UNREADABLE = "it cannot be read as a mathematical answer"


def compare(gold: str, candidate: str) -> Judgement:
    """Judges an extracted answer."""
    reference, answer = normalise(gold), normalise(candidate)
    by_words = _compare_words(reference, answer)
    if by_words is not None:
        return by_words
    if too_complex(reference):
        return Judgement(VerdictStatus.TOO_COMPLEX, "the reference can only be compared by its text")
    readable = False
    try:
        # 1,234 may be one number or two; both sides are read in the same way.
        for thousands in (True, False):
            one, other = _parsed(reference, thousands), _parsed(answer, thousands)
            if one is None or other is None:
                continue
            readable = True
            if _same(one, other):
                return Judgement(VerdictStatus.CORRECT, "equivalent")
            if _is_hedge(one, other):
                return Judgement(VerdictStatus.HEDGED, "several alternatives are declared")
    except ContradictionError as error:
        return Judgement(VerdictStatus.WRONG, str(error))
    except TooLargeError as error:
        return Judgement(VerdictStatus.TOO_COMPLEX, str(error))
    if readable:
        return Judgement(VerdictStatus.WRONG, "not equivalent")
    if not _could_be_read(answer):
        if unusable_gold(gold):
            return Judgement(VerdictStatus.BAD_GOLD, _UNREADABLE)
        return Judgement(VerdictStatus.WRONG, "not a mathematical answer")
    return _compare_symbolically(reference, answer)


def unusable_gold(gold: str) -> str | None:
    """Why a reference answer cannot be used."""
    reference = normalise(gold)
    valued = any(character.isalnum() for character in reference)
    if plain_words(reference) or choice_letter(reference):
        return None
    if too_complex(reference):  # an answer can still be equal to it letter by letter
        return None if valued else _UNREADABLE
    if _parsed(reference, True) is not None or _parsed(reference, False) is not None:
        return None
    from rstar_reward.math.symbolic import symbolic_parse

    return None if valued and symbolic_parse(reference) else _UNREADABLE


@lru_cache(maxsize=4096)  # a reference answer is read once for all rollouts of its group
def _parsed(text: str, thousands: bool) -> n.Node | None:
    try:
        return parse_answer(text, thousands)
    except (ParseError, NoValueError):
        return None


def _could_be_read(text: str) -> bool:
    """True unless our grammar knows all the notation of a text and still finds no sense in it."""
    try:
        parse_answer(text)
    except UnknownNotationError:
        return True
    except (ParseError, NoValueError):
        return False
    return True


def _compare_words(reference: str, answer: str) -> Judgement | None:
    letter = choice_letter(reference)
    if letter is not None:
        chosen = choice_letter(answer)
        if chosen is not None:
            status = VerdictStatus.CORRECT if chosen == letter else VerdictStatus.WRONG
            return Judgement(status, f"choice {chosen}")
        return None
    words, others = plain_words(reference), plain_words(answer)
    if words is None or others is None:
        return None
    if same_words(words, others):
        return Judgement(VerdictStatus.CORRECT, "same words")
    # A product of variables is made of letters too.
    return Judgement(VerdictStatus.WRONG, "different words") if len(words) > 4 or "\\text" in reference else None


_FOREIGN_WORDS = re.compile(r"\\(?:text[a-z]*|mathrm|mbox|operatorname) ?\{([^{}]*)\}|[a-zA-Z]{5,}")


def _compare_symbolically(reference: str, answer: str) -> Judgement:
    # math-verify drops words it does not know; "not 5" must not become 5.
    words = {found.group().casefold() for found in _FOREIGN_WORDS.finditer(re.sub(r"\\[a-zA-Z]{5,}", " ", answer))}
    known = {found.group().casefold() for found in _FOREIGN_WORDS.finditer(reference)}
    if words - known:
        return Judgement(VerdictStatus.WRONG, "not a mathematical answer")
    from rstar_reward.math.symbolic import symbolically_equal

    equal = symbolically_equal(reference, answer)
    if equal:
        return Judgement(VerdictStatus.CORRECT, "equivalent by math-verify")
    if equal is None and unusable_gold(reference):
        return Judgement(VerdictStatus.BAD_GOLD, _UNREADABLE)
    return Judgement(VerdictStatus.WRONG, "not equivalent" if equal is False else "not a mathematical answer")


def _is_hedge(reference: n.Node, answer: n.Node) -> bool:
    offered = isinstance(answer, n.Sequence) and answer.alternatives
    return offered and not (isinstance(reference, n.Sequence) and len(reference.items) > 1)


def _same(one: n.Node, other: n.Node) -> bool:
    """Whether two answers are the same; never raises NoValueError."""
    try:
        return _same_answers(one, other)
    except NoValueError:
        return False


def _same_answers(one: n.Node, other: n.Node) -> bool:
    one, other = _expanded(one), _expanded(other)
    if _mentions_regions(one) or _mentions_regions(other):
        regions = to_region(one, pairs=True), to_region(other, pairs=True)
        if regions[0] is not None and regions[1] is not None:
            return same_region(regions[0], regions[1])
    if isinstance(one, n.Relation) and isinstance(other, n.Relation) and _same_relations(one, other):
        return True
    return _same_readings(read(one), read(other))


def _mentions_regions(node: n.Node) -> bool:
    if isinstance(node, n.SetOperation) or node in (n.Symbol("Reals"), n.Symbol("emptyset")):
        return True
    if isinstance(node, n.Relation):
        return bool(set(node.signs) & {"<", ">", "<=", ">=", "!=", "in"})
    if isinstance(node, n.Sequence):
        half_open = (node.opening, node.closing) in (("(", "]"), ("[", ")"))
        return half_open or (not node.opening and any(_mentions_regions(item) for item in node.items))
    return False


def _expanded(node: n.Node) -> n.Node:
    r"""`a \pm b` as the list of its values."""
    signs = [part for part in n.walk(node) if isinstance(part, n.PlusMinus)]
    if not signs or len(signs) > 3:
        return node
    if isinstance(node, n.Sequence):
        items: list[n.Node] = []
        for item in node.items:
            expanded = _expanded(item)
            listed = isinstance(expanded, n.Sequence) and not expanded.opening and expanded != item
            items += expanded.items if listed and isinstance(expanded, n.Sequence) and not node.opening else [expanded]
        return n.Sequence(node.opening, node.closing, tuple(items), node.alternatives)
    if isinstance(node, n.Relation):
        *names, value = node.operands
        expanded = _expanded(value)
        if isinstance(expanded, n.Sequence) and not expanded.opening:
            relations = (n.Relation((*names, item), node.signs) for item in expanded.items)
            return n.Sequence("", "", tuple(relations))
        return node
    # With minus-plus the signs belong together, without it each goes its own way.
    if any(part.opposite for part in signs):
        choices = [tuple(-sign if part.opposite else sign for part in signs) for sign in (1, -1)]
    else:
        choices = list(product((1, -1), repeat=len(signs)))
    return n.Sequence("", "", tuple(_with_signs(node, list(choice)) for choice in choices))


def _with_signs(node: n.Node, signs: list[int]) -> n.Node:
    if isinstance(node, n.PlusMinus):
        sign = signs.pop(0)
        term = _with_signs(node.term, signs)
        return term if sign > 0 else n.Product((n.Number(Fraction(-1)), term))
    return n.rebuilt(node, lambda child: _with_signs(child, signs))


_DIRECTION = {"<": "<", "<=": "<=", ">": "<", ">=": "<="}


def _same_relations(one: n.Relation, other: n.Relation) -> bool:
    one, other = _ascending(one), _ascending(other)
    if one.signs != other.signs:
        return False
    if len(one.operands) == 2 and one.signs[0] in ("=", "<", "<=", "!="):
        left, right = (_difference(relation) for relation in (one, other))
        if left is not None and right is not None:
            try:
                if same_zeros(left, right, positive=one.signs[0] in ("<", "<=")):
                    return True
            except NoValueError:
                pass
    if set(one.signs) == {"="}:
        return False
    return all(_same(left, right) for left, right in zip(one.operands, other.operands, strict=True))


def _ascending(node: n.Relation) -> n.Relation:
    """The chain written with "less than" signs, so that 2 > x > -1 is -1 < x < 2."""
    if node.signs and all(sign in (">", ">=") for sign in node.signs):
        return n.Relation(node.operands[::-1], tuple(_DIRECTION[sign] for sign in reversed(node.signs)))
    return node


def _difference(node: n.Relation) -> n.Node | None:
    left, right = node.operands
    if any(isinstance(side, (n.Sequence, n.Words, n.Matrix, n.Relation, n.Ratio)) for side in (left, right)):
        return None
    return n.Sum((left, n.Product((n.Number(Fraction(-1)), right))))


def _same_readings(one: Reading, other: Reading) -> bool:
    left, right = one.value, other.value
    if one.names and other.names and one.names != other.names:
        if sorted(one.names) != sorted(other.names):
            return False
        # The same names in another order: put the values in the order of the reference.
        if not (isinstance(right, n.Sequence) and len(right.items) == len(other.names)):
            return False
        by_name = dict(zip(other.names, right.items, strict=True))
        right = n.Sequence(right.opening, right.closing, tuple(by_name[name] for name in one.names))
    if isinstance(left, n.Relation) or isinstance(right, n.Relation):
        return isinstance(left, n.Relation) and isinstance(right, n.Relation) and _same_relations(left, right)
    if isinstance(left, n.Sequence) or isinstance(right, n.Sequence):
        return _same_sequences(left, right)
    return _same_single(left, right)


def _same_single(one: n.Node, other: n.Node) -> bool:
    if isinstance(one, n.Matrix) or isinstance(other, n.Matrix):
        return isinstance(one, n.Matrix) and isinstance(other, n.Matrix) and _same_matrices(one, other)
    if isinstance(one, n.Ratio) or isinstance(other, n.Ratio):
        return _same_ratios(one, other)
    if isinstance(one, n.Based) or isinstance(other, n.Based):
        return one == other
    if isinstance(one, n.Words) or isinstance(other, n.Words):
        if not (isinstance(one, n.Words) and isinstance(other, n.Words)):
            return False
        return one.text.casefold() == other.text.casefold()
    if isinstance(one, n.Ellipsis) or isinstance(other, n.Ellipsis) or isinstance(one, n.SetOperation):
        return one == other
    if one == other:
        return True
    return same_measured(one, other)


def _same_matrices(one: n.Matrix, other: n.Matrix) -> bool:
    if len(one.rows) != len(other.rows) or len(one.rows[0]) != len(other.rows[0]):
        return False
    pairs = zip(one.rows, other.rows, strict=True)
    return all(_same(left, right) for rows in pairs for left, right in zip(*rows, strict=True))


def _same_ratios(one: n.Node, other: n.Node) -> bool:
    if isinstance(one, n.Ratio) and isinstance(other, n.Ratio):
        if len(one.parts) != len(other.parts):
            return False
        if all(_same(left, right) for left, right in zip(one.parts, other.parts, strict=True)):
            return True
        # 2:4 is 1:2, but half past three is not ten past one.
        if one.clock and other.clock:
            return False
        pairs = zip(one.parts[1:], other.parts[1:], strict=True)
        return all(_same_measured_products((one.parts[0], right), (left, other.parts[0])) for left, right in pairs)
    ratio, single = (one, other) if isinstance(one, n.Ratio) else (other, one)
    if not isinstance(ratio, n.Ratio) or ratio.clock or len(ratio.parts) != 2:
        return False
    return isinstance(single, n.Quotient) and same_measured(n.Quotient(*ratio.parts), single)


def _same_measured_products(one: tuple[n.Node, n.Node], other: tuple[n.Node, n.Node]) -> bool:
    return same_measured(n.Product(one), n.Product(other))


def _same_sequences(one: n.Node, other: n.Node) -> bool:
    if not (isinstance(one, n.Sequence) and isinstance(other, n.Sequence)):
        sequence, single = (one, other) if isinstance(one, n.Sequence) else (other, one)
        assert isinstance(sequence, n.Sequence)
        return sequence.opening == "\\{" and len(sequence.items) == 1 and _same(sequence.items[0], single)
    dots = any(isinstance(item, n.Ellipsis) for item in (*one.items, *other.items))
    unordered = {"", "\\{"}
    if not dots and one.opening in unordered and other.opening in unordered:
        return _same_unordered(one, other)
    if one.opening and other.opening and (one.opening, one.closing) != (other.opening, other.closing):
        return False
    if "\\{" in (one.opening, other.opening) and not dots:
        return False
    bare_against_pair = not (one.opening and other.opening) and "[" in (one.opening, other.opening)
    if bare_against_pair and len(one.items) == 2:  # an interval is no pair of values
        return False
    same_length = len(one.items) == len(other.items)
    return same_length and all(_same(left, right) for left, right in zip(one.items, other.items, strict=True))


def _same_unordered(one: n.Sequence, other: n.Sequence) -> bool:
    left, right = _members(one), _members(other)
    if len(left) != len(right) or len(left) > _MAX_UNORDERED:
        return False
    for member in left:
        match = next((index for index, item in enumerate(right) if _same(member, item)), None)
        if match is None:
            return False
        del right[match]
    return True


def _members(node: n.Sequence) -> list[n.Node]:
    """The members; in a set, each once."""
    if node.opening != "\\{" or len(node.items) > _MAX_UNORDERED:
        return list(node.items)
    members: list[n.Node] = []
    for item in node.items:
        if not any(_same(item, known) for known in members):
            members.append(item)
    return members
