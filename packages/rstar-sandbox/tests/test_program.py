"""Running source, without processes."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_sandbox.program import MAX_TRACEBACK_CHARACTERS, Ending, _compile_split, _compile_tree, run_source


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


_LINES = (
    *("x = 1", "x = (1 +", "2)", "+2", "f(x)", "x", "'doc'", '"""', "x = '''", "    y", "if x:", "else:", "x; x", "x;"),
    *("x = 1 \\", "# note", "", "x  # note", "*x, 1", "(y := 2)", "yield x", "@f", "def f(x): return x", "é + 'ü'"),
    *("lambda: 0", "for x in y: x", "]", "[x", "from __future__ import annotations", "x: int", "not x", "x \f"),
)


@given(st.lists(st.sampled_from(_LINES), min_size=1, max_size=6).map("\n".join))
@settings(max_examples=500, deadline=None)
def test_the_short_way_to_compile_gives_the_same_code(source: str) -> None:
    short = _compile_split(source, "main.py")
    if short is not None:
        body, value = _compile_tree(source, "main.py")
        assert short[1] == value
        # Where there are lines but no statements it has code, of nothing.
        assert short[0] == body or (body is None and not short[0].co_names and set(short[0].co_consts) == {None})


@pytest.mark.parametrize("source", ["print(1)", "def f(x):\n    return x\n\nprint(f(2))  # two\n\n", "x = 1\nx"])
def test_the_short_way_is_taken_for_what_models_write(source: str) -> None:
    assert _compile_split(source, "main.py") == _compile_tree(source, "main.py")


def test_a_form_feed_is_no_line_of_its_own() -> None:
    assert _run("x = 1  # \f\ny = 2; x\n(\n  x)").value == "1"
    assert _run("y = '\u2028' ; z = 3\n(\n  y); z;").value is None


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
