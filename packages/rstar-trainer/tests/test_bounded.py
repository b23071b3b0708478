"""Work that is waited for, but not for ever."""

from __future__ import annotations

import threading

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.bounded import UnendedError, within


def test_the_result_is_passed_on() -> None:
    assert within(60, "a sum", lambda: 1 + 1) == 2


def test_what_the_work_raises_is_passed_on() -> None:
    def refuse() -> None:
        raise UserInputError("field", 1, "2")

    with pytest.raises(UserInputError, match="field"):
        within(60, "a refusal", refuse)


def test_work_that_does_not_end_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(UnendedError, match=r"sending weights did not end within 0\.05 s"):
        within(0.05, "sending weights", never.wait)
    never.set()
