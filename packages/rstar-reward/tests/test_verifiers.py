from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_reward import verifier_names
from rstar_reward.verifiers import Verifier, load_verifier


@pytest.mark.parametrize("name", ["math", "exact", "choice", "function_call", ""])
def test_built_in_verifiers(name: str) -> None:
    assert isinstance(load_verifier(name), Verifier)


def test_a_plugin_is_found_by_its_entry_point(plugin: None) -> None:
    assert "misbehaving" in verifier_names()
    assert isinstance(load_verifier("misbehaving"), Verifier)


def test_a_plugin_that_is_no_verifier_is_refused(plugin: None) -> None:
    with pytest.raises(UserInputError, match="that makes a Verifier"):
        load_verifier("broken")
