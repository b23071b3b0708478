from __future__ import annotations

import time

import pytest

from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.transcript import Transcript


def declared(text: str) -> Declared:
    return extract_answer(Transcript.of(text))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed { 3 }", "3"),
        (r"\boxed 42", "42"),
        (r"first \boxed{1}, then better: \boxed{2}", "2"),
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"<reason>\boxed{8}</reason><answer>\boxed{9}</answer>", "9"),
        (r"<answer>5</answer> no <answer>6</answer>", "6"),
        ("<answer>The value is 12.</answer>", "12"),
        ("<answer>It comes to $12$ in all.</answer>", "12"),
        ("<answer>**12**</answer>", "12"),
        (r"a <answer>\boxed{5}</answer> as the <answer> tag demands", "5"),
        (r"<answer>\boxed{5}", "5"),
        ("The final answer is 16.", "16"),
        ("**Answer:** 4.", "4"),
        ("Final answer: $\\frac12$. I hope it is correct.", "\\frac12"),
        (r"\boxed{x \in \{1,2\}}<|im_end|>", r"x \in \{1,2\}"),
    ],
)
def test_the_declared_answer_is_found(text: str, answer: str) -> None:
    assert declared(text).text == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The number 42 is in the problem.",
        "I get 42",
        "<answer></answer>",
        r"\boxed{42} <answer> </answer>",
        r"<answer>\boxed{}</answer>",
        r"\boxed{42} and then \boxed{}",
        r"<answer>\boxed{42</answer>",
        "Answer: 4. Wait, that is wrong. It must be larger.",
        "The final answer is 42. I hope it is correct. Let me recheck: off by one.",
        "<tool_call>print('\\boxed{42}')</tool_call>",
        "so <tool_response>\\boxed{42}</tool_response> done",
        "so <tool_response>\\boxed{42}",
    ],
)
def test_nothing_declared_is_no_answer(text: str) -> None:
    assert declared(text).text is None


def test_adjacent_boxes_are_a_list() -> None:
    assert declared(r"$\boxed{2}$, $\boxed{3}$ and $\boxed{5}$").text == "2; 3; 5"


def test_a_repeated_box_is_one_answer() -> None:
    assert declared(r"\boxed{2}, \boxed{2}").text == "2"


@pytest.mark.parametrize(
    "text",
    [
        r"<answer>either \boxed{4} or \boxed{7}</answer>",
        r"<answer>\boxed{4}, or possibly \boxed{7}</answer>",
        r"It is \boxed{4} (unless it is \boxed{7})",
    ],
)
def test_a_choice_left_open_is_hedged(text: str) -> None:
    assert declared(text).hedged


def test_boxes_joined_by_or_are_alternatives() -> None:
    assert declared(r"\boxed{4} or \boxed{7}").alternatives


def test_an_earlier_answer_block_that_differs_from_the_last_box_is_hedged() -> None:
    turns = ({"role": "assistant", "text": "<answer>5</answer>"}, {"role": "tool", "text": "ok"})
    transcript = Transcript.of([*turns, {"role": "assistant", "text": r"\boxed{6}"}])
    assert extract_answer(transcript).hedged


def test_an_earlier_answer_block_counts_when_the_last_turn_declares_nothing() -> None:
    turns = ({"role": "assistant", "text": "<answer>5</answer>"}, {"role": "tool", "text": "ok"})
    transcript = Transcript.of([*turns, {"role": "assistant", "text": "The tool agrees."}])
    assert extract_answer(transcript).text == "5"


@pytest.mark.parametrize(
    "unit",
    [
        "{", "}", "\\boxed{", "\\boxed", "<answer>", "</answer>", "$", "\\(", "\\boxed{1} or ", " ", "\n", "answer is ",
        "<tool_call>", "<|im_end|>", "\\\\", "\\boxed{a}, ",
    ],
)  # fmt: skip
def test_extraction_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * count + "x"
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            declared(text)
            best = min(best, time.process_time() - start)
        return best

    # Sixteen times the text may take sixteen times as long, with room for noise; squared would be 256.
    assert seconds(32_000) < 80 * max(seconds(2_000), 1e-4)
