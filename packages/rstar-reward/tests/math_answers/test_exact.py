from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_reward.math.exact import parse_exact, same_number
from rstar_reward.math.normalise import normalise


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-12", -12),
        ("+7", 7),
        ("−5", -5),  # noqa: RUF001
        ("1,234", 1234),
        ("14{,}916", 14916),
        (r"1\,234\,567", 1234567),
        ("1 000", 1000),
        (".4", Fraction(2, 5)),
        ("5.", 5),
        ("2.50", Fraction(5, 2)),
        (r"\frac13", Fraction(1, 3)),
        (r"\dfrac{-10}{9}", Fraction(-10, 9)),
        (r"-\tfrac{10}{9}", Fraction(-10, 9)),
        ("3/8", Fraction(3, 8)),
        ("11 5/6", Fraction(71, 6)),
        (r"-2\frac{1}{3}", Fraction(-7, 3)),
        ("½", Fraction(1, 2)),
        ("٣", 3),
        ("$42$", 42),
        ("004", 4),
    ],
)
def test_numbers_are_read_exactly(text: str, value: Fraction | int) -> None:
    number = parse_exact(normalise(text))
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text", ["", "x", "1,23,4", "4 10/3", "1/0", "--7", "1.5.2", "10+1", "5!", "2^3", "1e", "5%", "(1,2)", "0,5"]
)
def test_anything_else_is_left_alone(text: str) -> None:
    assert parse_exact(normalise(text)) is None


@given(st.integers(), st.integers())
def test_integers_are_the_same_exactly_when_equal(one: int, other: int) -> None:
    left, right = parse_exact(str(one)), parse_exact(str(other))
    assert left is not None
    assert right is not None
    assert same_number(left, right) == (one == other)


@given(st.fractions())
def test_every_spelling_of_a_fraction_is_the_same_number(value: Fraction) -> None:
    spellings = (
        f"{value.numerator}/{value.denominator}",
        rf"\frac{{{value.numerator}}}{{{value.denominator}}}",
        rf"\dfrac{{{3 * value.numerator}}}{{{3 * value.denominator}}}",
    )
    numbers = [parse_exact(normalise(text)) for text in spellings]
    assert all(number is not None and number.value == value for number in numbers)


@given(st.integers(min_value=1, max_value=10**12), st.integers(min_value=3, max_value=10**6))
def test_a_decimal_counts_from_ten_correctly_rounded_digits_on(above: int, below: int) -> None:
    value = Fraction(above, below)
    for places, step in ((12, 0), (12, 2)):
        scaled = round(value * 10**places) + step
        text = f"{scaled // 10**places}.{scaled % 10**places:0{places}d}"
        decimal, exact = parse_exact(text), parse_exact(f"{above}/{below}")
        assert decimal is not None
        assert exact is not None
        written_out = len(str(scaled)) >= 10 and value.denominator != 1
        expected = decimal.value == value or (written_out and step == 0)
        assert same_number(decimal, exact) == expected


def test_five_thousand_digits_are_compared() -> None:
    long = "1" * 5000
    one, same, other = parse_exact(long), parse_exact(long), parse_exact(long[:-1] + "2")
    assert one is not None
    assert same is not None
    assert other is not None
    assert same_number(one, same)
    assert not same_number(one, other)


def test_integers_are_judged_without_sympy_and_without_a_worker() -> None:
    program = (
        "import sys; from rstar_reward import verify; "
        "assert verify('12', r'<answer>\\boxed{12}</answer>').reward == 1; "
        "assert verify('12', r'<answer>\\boxed{13}</answer>').reward == 0; "
        "assert not {'sympy', 'mpmath', 'math_verify', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
