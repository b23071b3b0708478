"""What programs do to sandboxes, against the real service: output and values of programs.

Numbers are the rows of the list of known faults.
"""

from __future__ import annotations

import pytest

from rstar_sandbox import Limits, Sandbox, Status

pytestmark = pytest.mark.timeout(180)

# 1, 2: output


def test_long_output_is_an_exact_prefix_with_its_true_size(sandbox: Sandbox) -> None:
    result = sandbox.run("print(''.join(str(i % 10) for i in range(400_000)), end='')")
    assert result.status is Status.OK
    assert result.stdout == b"".join(b"%d" % (i % 10) for i in range(64 * 1024))
    assert (result.stdout_bytes, result.stdout_truncated) == (400_000, True)


def test_long_standard_error_is_cut_apart_from_standard_output(sandbox: Sandbox) -> None:
    limits = Limits(max_stderr_bytes=10)
    result = sandbox.run("import sys; print('out'); sys.stderr.write('e' * 300_000)", limits=limits)
    assert (result.stdout, result.stdout_truncated) == (b"out\n", False)
    assert (result.stderr, result.stderr_bytes, result.stderr_truncated) == (b"e" * 10, 300_000, True)


def test_output_of_exactly_the_limit_is_not_called_truncated(sandbox: Sandbox) -> None:
    result = sandbox.run("print('x' * 100, end='')", limits=Limits(max_stdout_bytes=100))
    assert (len(result.stdout), result.stdout_truncated) == (100, False)


def test_endless_output_is_ended_with_its_status(sandbox: Sandbox) -> None:
    result = sandbox.run("while True: print('y' * 10_000)", limits=Limits(wall_seconds=60))
    assert result.status is Status.OUTPUT_LIMIT
    assert result.stdout.startswith(b"yyyy")
    assert result.stdout_bytes > 64 * 1024 * 1024


def test_slow_endless_output_times_out_with_what_was_printed(sandbox: Sandbox) -> None:
    result = sandbox.run("import time\nwhile True:\n    print('tick')\n    time.sleep(0.01)", timeout_s=0.5)
    assert result.status is Status.TIMEOUT
    assert result.stdout.startswith(b"tick\ntick\n")


# 3, 4: bytes and characters


def test_bytes_that_are_not_utf8_leave_the_rest_intact(sandbox: Sandbox) -> None:
    result = sandbox.run("import sys; print('a', flush=True); sys.stdout.buffer.write(b'\\xff\\xfe'); print('b')")
    assert result.status is Status.OK
    assert result.stdout == b"a\n\xff\xfeb\n"


def test_a_printed_lone_surrogate_is_the_programs_own_error(sandbox: Sandbox) -> None:
    result = sandbox.run("print('before')\nprint('\\ud800')")
    assert result.status is Status.ERROR
    assert result.traceback is not None
    assert "line 2" in result.traceback
    assert "UnicodeEncodeError" in result.traceback
    assert result.stdout == b"before\n"


def test_a_lone_surrogate_in_a_value_or_message_is_escaped(sandbox: Sandbox) -> None:
    assert sandbox.run("'\\ud800'").value == "'\\ud800'"
    result = sandbox.run("raise ValueError('\\udfff')")
    assert result.traceback is not None
    assert "ValueError: \\udfff" in result.traceback


# 22: the value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("2+3", "5"),
        ("x=5\nx", "5"),
        ("None", None),
        ("a = 1; b = 2\na;b", "2"),
        ("a = 1; a;", None),
        ("x = 1", None),
        ("'text'", "'text'"),
        ("x = 3\nif x:\n    x", None),
        ("", None),
        ("# only a comment", None),
        ("print(1)", None),
        ("(1,\n 2)\n\n# end", "(1, 2)"),
        ("__name__", "'__main__'"),
        ("'ä'; 'ö' ; ", None),
    ],
)
def test_the_value_is_that_of_the_last_expression(sandbox: Sandbox, code: str, value: str | None) -> None:
    result = sandbox.run(code)
    assert (result.status, result.value) == (Status.OK, value)


def test_a_hostile_repr_is_the_programs_error(sandbox: Sandbox) -> None:
    result = sandbox.run("class A:\n    def __repr__(self): raise KeyError('no')\nA()")
    assert result.status is Status.ERROR
    assert result.traceback is not None
    assert "KeyError" in result.traceback


def test_a_repr_without_end_times_out(sandbox: Sandbox) -> None:
    code = "class A:\n    def __repr__(self):\n        while True: pass\nA()"
    assert sandbox.run(code, timeout_s=0.5).status is Status.TIMEOUT


def test_a_huge_value_is_shortened(sandbox: Sandbox) -> None:
    value = sandbox.run("'x' * 10_000_000").value
    assert value is not None
    assert len(value) < 100_000
    assert "characters left out" in value
