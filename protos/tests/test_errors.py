"""Errors are one line and survive a process border."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import InfrastructureError, RStarError, ServiceUnavailableError, UserInputError, known_as


def test_an_input_error_names_field_value_and_what_is_accepted() -> None:
    error = UserInputError("stages.0.steps", -3, "a whole number from 1")
    assert str(error) == "stages.0.steps: -3 is not usable; accepted: a whole number from 1"
    assert (error.field, error.value, error.accepted) == ("stages.0.steps", -3, "a whole number from 1")


@given(st.text(), st.text(), st.text())
def test_input_errors_pickle(field: str, value: str, accepted: str) -> None:
    error = UserInputError(field, value, accepted)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_the_user_did_and_what_the_infrastructure_did_are_kept_apart() -> None:
    assert issubclass(ServiceUnavailableError, InfrastructureError)
    assert not issubclass(UserInputError, InfrastructureError)
    assert not issubclass(InfrastructureError, UserInputError)
    assert issubclass(UserInputError, RStarError)


def test_errors_name_the_option_where_one_is_known_for_the_field() -> None:
    with pytest.raises(UserInputError) as told, known_as({"wall_seconds": "--timeout"}):
        raise UserInputError("wall_seconds", -1, "a number from 0")
    assert str(told.value) == "--timeout: -1 is not usable; accepted: a number from 0"
    with pytest.raises(UserInputError, match=r"^other: "), known_as({"wall_seconds": "--timeout"}):
        raise UserInputError("other", -1, "a number from 0")
