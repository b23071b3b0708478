"""Running source, without processes."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.program import MAX_TRACEBACK_CHARACTERS, Ending, run_source


def _run(source: str, namespace: dict[str, Any] | None = None) -> Ending:
    return run_source(source, "main.py", {"__builtins__": builtins} if namespace is None else namespace)


@given(st.text())
def test_any_text_either_runs_or_is_an_error_with_words(source: str) -> None:
    ending = _run("if False:\n pass\n" + source)
    assert ending.kind in ("ok", "error")
    assert ending.kind == "ok" or ending.traceback


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner, inner), max_leaves=5))
def test_the_value_is_the_repr_of_the_last_expression(value: object) -> None:
    ending = _run(f"x = 1\n{value!r}")
    assert ending.value is not None
    assert eval(ending.value) == value


@given(st.integers(1, 40))
def test_an_error_names_the_line_it_comes_from(line: int) -> None:
    ending = _run("\n" * (line - 1) + "1 / 0")
    assert f'"main.py", line {line}' in (ending.traceback or "")


def test_statements_before_the_last_expression_run_once() -> None:
    namespace: dict[str, Any] = {"log": []}
    assert _run("log.append(1)\nlog.append(2)", namespace).value is None
    assert namespace["log"] == [1, 2]


def test_a_nested_exception_shows_its_cause() -> None:
    ending = _run("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('outer') from e")
    assert "ZeroDivisionError" in (ending.traceback or "")
    assert (ending.traceback or "").endswith("ValueError: outer\n")


@pytest.mark.parametrize("group", [name for name in ("ExceptionGroup",) if hasattr(builtins, name)] or ["ValueError"])
def test_every_member_of_an_exception_is_shown(group: str) -> None:
    ending = _run(f"raise {group}('several', [ValueError('a'), KeyError('b')])")
    assert "ValueError" in (ending.traceback or "")
    assert "KeyError('b')" in (ending.traceback or "") or "KeyError: 'b'" in (ending.traceback or "")


@pytest.mark.parametrize(
    ("code", "number"), [("None", 0), ("0", 0), ("3", 3), ("-1", 255), ("256", 0), ("'x'", 1), ("True", 1)]
)
def test_exit_codes_are_the_interpreters(code: str, number: int) -> None:
    ending = _run(f"raise SystemExit({code})")
    assert (ending.kind, ending.exit_code, ending.traceback) == ("exit", number, None)


def test_a_memory_error_is_told_apart() -> None:
    assert _run("raise MemoryError").kind == "memory"


def test_a_very_long_message_keeps_its_start_and_its_end() -> None:
    ending = _run("raise ValueError('start' + 'x\\n' * 100_000 + 'end')")
    text = ending.traceback or ""
    assert len(text) < MAX_TRACEBACK_CHARACTERS + 200
    assert "ValueError: start" in text
    assert text.endswith("end\n")


def test_a_very_long_line_is_shortened() -> None:
    ending = _run("x = " + "1 + " * 500 + "None")
    assert all(len(line) < 500 for line in (ending.traceback or "").splitlines())
    assert "TypeError" in (ending.traceback or "")


def test_names_of_the_runner_are_not_in_the_namespace() -> None:
    namespace: dict[str, Any] = {"__builtins__": builtins}
    _run("x = 1", namespace)
    assert set(namespace) == {"__builtins__", "x"}
