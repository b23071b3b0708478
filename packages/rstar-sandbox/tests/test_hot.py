"""The C extension and the Python code that stands in for it do the same."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

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


def test_random_numbers_are_fresh(either: Sandbox) -> None:
    code = "import random; (random.random(), random.Random(1).random())"
    first, second = _value(either, code), _value(either, code)
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_the_main_thread_knows_its_id(either: Sandbox) -> None:
    code = "import threading; threading.main_thread().native_id == threading.get_native_id()"
    assert _value(either, code) is True


def test_threads_and_processes_of_a_program_work(either: Sandbox) -> None:
    code = """
import os, threading
seen = []
thread = threading.Thread(target=lambda: seen.append(1))
thread.start()
thread.join()
pid = os.fork()
if pid == 0:
    os._exit(7)
(seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert _value(either, code) == ([1], 7)


def test_standard_input_of_any_size_is_read_to_its_end(either: Sandbox) -> None:
    content = bytes(range(256)) * 1000
    result = either.run("import hashlib, sys; hashlib.sha256(sys.stdin.buffer.read()).hexdigest()", stdin=content)
    assert ast.literal_eval(result.value or "None") == hashlib.sha256(content).hexdigest()


def test_the_memory_limit_of_a_call_holds(either: Sandbox) -> None:
    code = "block = bytearray(256 * 2**20); len(block)"
    assert either.run(code, memory_mb=64).status is Status.MEMORY_LIMIT
    assert either.run(code, memory_mb=512).status is Status.OK


def test_the_cpu_time_of_a_program_is_its_own(either: Sandbox) -> None:
    result = either.run("import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    assert 0.2 < result.cpu_seconds < 2


def test_no_memory_is_shared_with_other_calls(either: Sandbox) -> None:
    code = "[line for line in open('/proc/self/maps') if line.split()[1].startswith('rw-s')]"
    assert either.run(code).value == "[]"


@pytest.mark.parametrize("hook", ["lambda: told.append(1)", "functools.partial(told.append, 1)", "told.clear"])
def test_a_module_that_asks_is_told_of_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    (tmp_path / "attentive.py").write_text(
        f"import functools, os\ntold = ['nothing']\nos.register_at_fork(after_in_child={hook})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Sandbox(slots=1, options=["--warm", "attentive"]) as running:
        assert running.run("import attentive\nattentive.told != ['nothing']").value == "True"
