"""What counts as an integer answer."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.data import integer_answer


@given(st.integers())
def test_every_integer_is_its_own_answer(value: int) -> None:
    assert integer_answer(str(value)) == str(value)


@given(st.integers(min_value=0))
def test_grouping_commas_are_taken_out(value: int) -> None:
    assert integer_answer(f"{value:,}") == str(value)


@given(st.text())
def test_what_is_accepted_is_what_python_reads_as_the_same_integer(text: str) -> None:
    found = integer_answer(text)
    if found is not None:
        assert int(found) == Decimal(text.strip().replace(",", ""))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.5",
        "1.",
        "1.00001",
        ".0",
        "1/2",
        "1,00",
        "1,0000",
        ",1",
        "1e3",
        "x",
        "1 2",
        "\\frac{1}{2}",
        "٣",
        "0x1",
        "1_000",
        "--1",
    ],
)
def test_other_answers_are_not_integers(text: str) -> None:
    assert integer_answer(text) is None


def test_nothing_but_zeros_behind_the_point_is_an_integer() -> None:
    assert [integer_answer(text) for text in ("5.0", "-1,000.00")] == ["5", "-1000"]


def test_a_plus_sign_and_surrounding_space_are_taken_off() -> None:
    assert integer_answer(" +12 ") == "12"
