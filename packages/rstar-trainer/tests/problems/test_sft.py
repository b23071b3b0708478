"""Supervised examples: real tool output, parsable calls, right answers, varied wording, nothing unseen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.tools import PYTHON_TOOL
from rstar_trainer.problems import generate, run_trusted, sft_examples

# No deadline: first draws import and hash much, on machines that are busy.
FEW = settings(max_examples=20, deadline=None)

SEEDS = st.integers(0, 2**32)
FORMAT = ChatFormat.load("rstar")


@FEW
@given(seed=SEEDS)
def test_the_call_parses_and_its_code_gives_the_shown_output(seed):
    for example in sft_examples(20, seed):
        first, last = example.turns
        (call,) = FORMAT.parser().parse(first.assistant).calls
        assert call.name == PYTHON_TOOL.name
        assert PYTHON_TOOL.argument_error(call.arguments) is None
        assert run_trusted(call.arguments["code"]) == first.tool_response
        assert last.tool_response is None


@FEW
@given(seed=SEEDS)
def test_the_boxed_answer_in_the_answer_tags_is_the_gold_answer(seed):
    for example in sft_examples(20, seed):
        said = example.turns[-1].assistant
        declared = said.split("<answer>")[1].split("</answer>")[0]
        assert f"\\boxed{{{example.problem.answer}}}" in declared


@FEW
@given(seed=SEEDS)
def test_no_training_or_held_out_problem_is_shown(seed):
    shown = {e.problem.problem_id for e in sft_examples(30, seed)}
    for split in ("train", "heldout"):
        assert not shown & {p.problem_id for p in generate(split, 60, seed)}


def test_wording_and_code_vary():
    examples = sft_examples(60, 3)
    assert len({e.turns[0].assistant.split("</reason>")[0] for e in examples}) >= 5
    assert len({e.turns[1].assistant.split("<answer>")[1].split("\\boxed")[0] for e in examples}) == 3
    assert {e.turns[0].assistant.count('"input"') for e in examples} == {0, 1}


def test_equal_seeds_give_equal_examples():
    assert sft_examples(20, 8) == sft_examples(20, 8)
    assert sft_examples(20, 8) != sft_examples(20, 9)


def test_the_families_can_be_restricted():
    assert {e.problem.family for e in sft_examples(12, 0, families=["sum", "digits"])} == {"sum", "digits"}


@pytest.mark.parametrize(
    ("code", "shown"),
    [("print(1 + 1)", "2\n"), ("x = 3\nx * 2", "6"), ("x = 3", ""), ("print('a')\n5", "a\n"), ("'q'", "'q'")],
)
def test_the_shown_output_is_stdout_or_else_the_last_value(code, shown):
    assert run_trusted(code) == shown
