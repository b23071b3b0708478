"""What programs do to sandboxes, against the real service: ways in which programs begin, end and fail.

Numbers are the rows of the list of known faults.
"""

from __future__ import annotations

import signal

import pytest

from rstar_sandbox import ExecutionResult, Sandbox, Status

pytestmark = pytest.mark.timeout(180)

# 13: standard input


def test_input_without_standard_input_is_an_end_of_file_at_once(sandbox: Sandbox) -> None:
    result = sandbox.run("input()")
    assert result.status is Status.ERROR
    assert result.traceback is not None
    assert "EOFError" in result.traceback


def test_standard_input_larger_than_a_pipe_arrives_whole(sandbox: Sandbox) -> None:
    result = sandbox.run("import sys; data = sys.stdin.buffer.read(); (len(data), data[-3:])", b"x" * 999_997 + b"end")
    assert result.value == "(1000000, b'end')"


def test_lines_of_standard_input_are_read_one_by_one(sandbox: Sandbox) -> None:
    assert sandbox.run("a = input(); b = input(); (a, b)", "1\n2\n").value == "('1', '2')"


# 14: ways to end


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(7)", 7),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("import atexit, os; atexit.register(os._exit, 5)", 5),
    ],
)
def test_an_exit_code_is_reported_as_a_crash(sandbox: Sandbox, code: str, exit_code: int) -> None:
    result = sandbox.run(f"print('x')\n{code}")
    assert (result.status, result.exit_code, result.signal) == (Status.CRASHED, exit_code, None)
    assert result.stdout == b"x\n"


def test_an_exit_with_a_message_prints_it(sandbox: Sandbox) -> None:
    result = sandbox.run("import sys; sys.exit('no luck')")
    assert (result.status, result.exit_code, result.stderr) == (Status.CRASHED, 1, b"no luck\n")


@pytest.mark.parametrize("code", ["import sys; sys.exit()", "import sys; sys.exit(0)", "exit()"])
def test_an_orderly_exit_is_ok(sandbox: Sandbox, code: str) -> None:
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == (Status.OK, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV])
def test_a_signal_is_reported_as_a_crash(sandbox: Sandbox, number: signal.Signals) -> None:
    result = sandbox.run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert (result.status, result.signal, result.exit_code) == (Status.CRASHED, number, None)


def test_a_segmentation_fault_is_reported(sandbox: Sandbox) -> None:
    result = sandbox.run("import ctypes; ctypes.string_at(0)")
    assert (result.status, result.signal) == (Status.CRASHED, signal.SIGSEGV)


def test_an_abort_is_reported(sandbox: Sandbox) -> None:
    assert sandbox.run("import os; os.abort()").signal == signal.SIGABRT


# 23: bad source


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\ny = (", 2),
        ("def f(:\n  pass", 1),
        ("x = 1\n  y = 2", 2),
        ("a\0b", 1),
        ("x = 1\ny = '\0'", 2),
        ("x = 1\n" + "(" * 100_000, 2),
        ("x = 1\n" + "(" * 100_000 + ")" * 100_000, 2),
        ("x = 1\n" + "-" * 100_000 + "1", 2),
        ("x = 1\n" + "1" + "+1" * 100_000, 2),
        ("x = 1\n" + "a" + ".b" * 100_000, 2),
        ("x = 1\n" + "[" * 150 + "]" * 149, 2),
        ("return 5", 1),
        ("await x", 1),
        ("x = 5 5", 1),
    ],
)
def test_bad_source_is_an_error_with_its_line(sandbox: Sandbox, code: str, line: int) -> None:
    result = sandbox.run(code, timeout_s=60)
    assert (result.status, result.value) == (Status.ERROR, None)
    assert result.traceback is not None
    assert f"line {line}" in result.traceback
    assert "Error" in result.traceback
    assert len(result.traceback) < 20_000


def test_a_megabyte_of_source_runs(sandbox: Sandbox) -> None:
    result = sandbox.run("x = 1\n" * 170_000 + "x", timeout_s=120)
    assert result.value == "1"


def test_endless_recursion_is_an_error_with_its_line(sandbox: Sandbox) -> None:
    result = sandbox.run("def f(n):\n    return f(n + 1)\nf(0)")
    assert result.status is Status.ERROR
    assert result.traceback is not None
    assert "RecursionError" in result.traceback
    assert "line 2" in result.traceback


def test_a_raised_recursion_limit_ends_the_program_alone(sandbox: Sandbox) -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())"
    result = sandbox.run(code, memory_mb=200, timeout_s=60)
    assert result.status in (Status.CRASHED, Status.MEMORY_LIMIT, Status.ERROR)
    assert sandbox.run("1").value == "1"


def test_a_traceback_shows_the_programs_lines_and_not_the_sandboxs(sandbox: Sandbox) -> None:
    traceback = _traceback(sandbox.run("def f():\n    return 1 / 0\n\nf()"))
    assert 'File "main.py", line 4, in <module>\n    f()' in traceback
    assert 'File "main.py", line 2, in f\n    return 1 / 0' in traceback
    assert traceback.endswith("ZeroDivisionError: division by zero\n")
    assert "rstar_sandbox" not in traceback


def test_an_exception_that_cannot_be_shown_is_still_an_error(sandbox: Sandbox) -> None:
    code = "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E"
    result = sandbox.run(code)
    assert result.status is Status.ERROR
    assert "E" in _traceback(result)


def test_printed_text_that_looks_like_an_error_is_not_one(sandbox: Sandbox) -> None:
    result = sandbox.run("print('Traceback (most recent call last):\\nValueError: error')")
    assert (result.status, result.traceback) == (Status.OK, None)


def _traceback(result: ExecutionResult) -> str:
    assert result.traceback is not None
    return result.traceback
