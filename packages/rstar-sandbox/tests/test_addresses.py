"""Results that are a function of the program."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox import Sandbox
from rstar_sandbox.addresses import with_stable_addresses
from rstar_sandbox.messages import Outcome

_PROGRAM = """
import random
class A: pass
a = A()
print(random.random(), a, lambda: 0, {"x", "y", "z", "w"})
a
"""


@pytest.fixture(scope="module")
def seeded() -> Iterator[Sandbox]:
    with Sandbox(slots=1, options=["--seed", "7", "--warm", ""]) as running:
        yield running


def test_a_program_gives_the_same_on_every_service_with_the_same_seed(seeded: Sandbox) -> None:
    first = seeded.run(_PROGRAM)
    seeded.run("x = [object() for _ in range(1000)]")
    with Sandbox(slots=1, options=["--seed", "7", "--warm", ""]) as other:
        second = other.run(_PROGRAM)
    assert (first.stdout, first.value) == (second.stdout, second.value)
    assert first.ok


def test_another_program_gets_other_random_numbers(seeded: Sandbox) -> None:
    assert seeded.run("import random; random.random()").value != seeded.run("import random; random.random() ").value


def test_another_input_gives_other_random_numbers(seeded: Sandbox) -> None:
    program = "import random; random.random()"
    assert seeded.run(program, "1").value != seeded.run(program, "2").value


def test_without_a_seed_addresses_are_as_printed(sandbox: Sandbox) -> None:
    result = sandbox.run("x = object(); print(x); hex(id(x))")
    assert result.value is not None
    assert result.value.strip("'") in result.text


def test_equal_addresses_stay_equal_and_different_ones_different() -> None:
    outcome = with_stable_addresses(
        Outcome("ok", stdout=b"<f at 0x7fabcdef0010> <g at 0x7fabcdef0020>", value="<f at 0x7fabcdef0010>")
    )
    first, second = re.findall(rb"at 0x(\w+)", outcome.stdout)
    assert first != second
    assert outcome.value == f"<f at 0x{first.decode()}>"


@given(st.binary(), st.text())
def test_lengths_stay_and_a_second_pass_changes_nothing(stdout: bytes, value: str) -> None:
    outcome = Outcome("ok", stdout=stdout + b" at 0x7f12ab45cd90", value=value + " at 0x7f")
    once = with_stable_addresses(outcome)
    assert len(once.stdout) == len(outcome.stdout)
    assert len(once.value or "") == len(outcome.value or "")
    assert with_stable_addresses(once).stdout == once.stdout
