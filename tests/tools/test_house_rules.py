"""Rules that no linter knows."""

import pytest
from house_rules import MOST_LINES, accepted_as_sentences, broken_rules


def test_a_file_at_the_limit_is_kept_and_one_line_more_is_not() -> None:
    assert not list(broken_rules("a.py", "x = 1\n" * MOST_LINES))
    assert list(broken_rules("a.py", "x = 1\n" * (MOST_LINES + 1)))


@pytest.mark.parametrize("marker", ["noqa", "type: ignore"])
@pytest.mark.parametrize("rest", ["", "  # because", ": S603", "[arg-type]"])
def test_an_ignore_without_code_or_reason_is_reported(marker: str, rest: str) -> None:
    assert list(broken_rules("a.py", f"x = 1  # {marker}{rest}\n"))


@pytest.mark.parametrize(
    "comment",
    [
        "noqa: S603 - the command is fixed",
        "noqa: S603, S607 fixed command",
        "type: ignore[arg-type]  # forwarded as is",
    ],
)
def test_an_ignore_with_code_and_reason_is_kept(comment: str) -> None:
    assert not list(broken_rules("a.py", f"x = 1  # {comment}\n"))


IGNORE = "# type: " + "ignore[misc]"  # in two parts, or the rule would find it here


def test_a_comment_above_explains_the_ignores_that_follow_it() -> None:
    block = f"# the base class is untyped\na = f()  {IGNORE}\nb = f()  {IGNORE}\n"
    assert not list(broken_rules("a.py", block))
    assert len(list(broken_rules("a.py", f"{block}c = 1\nd = f()  {IGNORE}\n"))) == 1


def test_a_comment_above_does_not_stand_in_for_the_code() -> None:
    assert list(broken_rules("a.py", "# because\na = f()  # no" + "qa\n"))


def test_a_test_need_not_give_the_reason_but_the_code() -> None:
    assert not list(broken_rules("packages/a/tests/test_a.py", f"a = f()  {IGNORE}\n"))
    assert list(broken_rules("packages/a/tests/test_a.py", "a = f()  # no" + "qa\n"))


@pytest.mark.parametrize("comment", ["# no" + "qa: E402", "# type: " + "ignore[import-untyped]"])
def test_a_code_that_says_its_reason_needs_no_other(comment: str) -> None:
    assert not list(broken_rules("a.py", f"import a  {comment}\n"))


@pytest.mark.parametrize("accepted", ['"give a number"', 'f"should be {x}"', '"must be " + x', '"name a file"'])
def test_an_order_or_a_sentence_is_not_what_is_accepted(accepted: str) -> None:
    assert list(accepted_as_sentences("a.py", f'raise UserInputError("n", 0, {accepted})\n'))


@pytest.mark.parametrize("accepted", ['"a number above 0"', 'f"one of {x}"', '"at least 1"', "x", 'f"{x} or less"'])
def test_a_noun_phrase_is(accepted: str) -> None:
    assert not list(accepted_as_sentences("a.py", f'raise UserInputError("n", 0, {accepted})\n'))
