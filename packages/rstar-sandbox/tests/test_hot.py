"""The C extension and the Python code that stands in for it do the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from rstar_sandbox import Sandbox, Status
from rstar_sandbox.hot import EXTENSION

# Without a compiler there is only one of them.
BUILT = ["python", *(["extension"] if EXTENSION is not None else [])]


@pytest.fixture(scope="module", params=BUILT)
def either(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setenv("RSTAR_SANDBOX_PURE_PYTHON", "1")
        with Sandbox(slots=1, options=["--warm", ""]) as running:
            yield running


def _value(sandbox: Sandbox, code: str) -> object:
    return ast.literal_eval(sandbox.run(code).value or "None")


def test_a_program_runs(either: Sandbox) -> None:
    assert _value(either, "2 + 3") == 5


def test_no_descriptor_but_the_channel_is_open(either: Sandbox) -> None:
    code = """
import os
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
[n for n in range(4096) if is_open(n)]
"""
    assert _value(either, code) == [0, 1, 2, 255]


def test_limits_are_set_and_rights_are_gone(either: Sandbox) -> None:
    code = """
import ctypes, resource
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
libc.capget(header, data)
limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
(list(data), libc.prctl(39, 0, 0, 0, 0), limits)
"""
    assert _value(either, code) == ([0] * 6, 1, [(0, 0), (256, 256)])


def test_a_program_leads_its_own_session(either: Sandbox) -> None:
    assert _value(either, "import os; os.getsid(0) == os.getpid() == os.getpgrp()") is True


def test_an_interrupt_raises(either: Sandbox) -> None:
    result = either.run("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    assert "KeyboardInterrupt" in (result.traceback or "")


def test_orphans_are_ended(either: Sandbox) -> None:
    either.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)")
    assert either.run("1").value == "1"


def test_a_long_call_times_out(either: Sandbox) -> None:
    assert either.run("10**(10**9)", timeout_s=0.5).status is Status.TIMEOUT
