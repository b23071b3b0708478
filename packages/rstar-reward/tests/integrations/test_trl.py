"""The reward function by TRL's calling convention; `checks/trl_grpo.py` trains with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rstar_protos.errors import UserInputError
from rstar_reward.integrations.trl import make_reward

RIGHT, WRONG = "<answer>\\boxed{\\frac{1}{2}}</answer>", "<answer>\\boxed{\\frac{1}{3}}</answer>"


def test_plain_completions() -> None:
    reward = make_reward()
    columns = {"answer": ["0.5", "0.5", "0.5"], "source": ["s"] * 3, "trainer_state": None, "log_metric": None}
    assert reward(prompts=["p"] * 3, completions=[RIGHT, WRONG, "0.5"], completion_ids=[[1]] * 3, **columns) == [
        1,
        0,
        0,
    ]


def test_conversational_completions_are_read_where_the_assistant_wrote() -> None:
    conversation = [
        {"role": "assistant", "content": None, "tool_calls": [{"name": "run"}]},
        {"role": "tool", "content": RIGHT},
        {"role": "assistant", "content": [{"type": "text", "text": WRONG}]},
    ]
    reward = make_reward("solution")
    assert reward(completions=[conversation, conversation], solution=["1/2", "1/3"]) == [0, 1]
    assert reward(completions=[conversation[:2]], solution=["1/2"]) == [0]


def test_a_completion_that_was_cut_off_gets_nothing() -> None:
    reward = make_reward(end_tokens={2})
    ids = [[5, 6, 2], [5, 6, 7], []]
    assert reward(completions=[RIGHT] * 3, completion_ids=ids, answer=["0.5"] * 3) == [1, 0, 0]


def test_what_belongs_in_no_group_has_no_reward() -> None:
    assert make_reward()(completions=[RIGHT, RIGHT], answer=["", "0.5"]) == [None, 1]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UserInputError, match="column: 'answer'"):
        make_reward()(completions=[RIGHT], gold=["0.5"])


def test_the_function_has_a_name_for_metrics() -> None:
    assert make_reward().__name__ == "answer_reward"


def test_neither_framework_is_imported() -> None:
    program = (
        "import sys, rstar_reward.integrations.trl, rstar_reward.integrations.verl; "
        "assert not {'trl', 'verl', 'torch', 'transformers'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
