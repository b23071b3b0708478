"""What programs do to sandboxes, against the real service: bounds on time, memory and processes.

Numbers are the rows of the list of known faults.
"""

from __future__ import annotations

import pytest

from rstar_sandbox import Limits, Sandbox, Status

pytestmark = pytest.mark.timeout(180)

# 8: bombs


def test_a_fork_bomb_is_ended_and_the_next_call_is_served(sandbox: Sandbox) -> None:
    # A thousand sleepers rather than a bomb without end: where no bound held, the machine has to live on.
    code = "import os, time\nfor _ in range(10):\n    try: os.fork()\n    except OSError: pass\ntime.sleep(60)"
    result = sandbox.run(code, timeout_s=5)
    assert result.status in (Status.CRASHED, Status.TIMEOUT, Status.MEMORY_LIMIT)
    assert sandbox.run("1").value == "1"


def test_the_processes_of_a_call_are_bounded(sandbox: Sandbox) -> None:
    code = """
import os, time
made = 0
for _ in range(400):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
    made += 1
print(made, flush=True)
"""
    result = sandbox.run(code, timeout_s=60)
    assert result.status is Status.CRASHED or int(result.stdout) < 200


def test_a_thread_bomb_is_ended_and_the_next_call_is_served(sandbox: Sandbox) -> None:
    code = "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    result = sandbox.run(code, timeout_s=20)
    assert result.status is not Status.OK
    assert sandbox.run("1").value == "1"


# 10, 12: time


@pytest.mark.parametrize("code", ["10**(10**9)", "while True: pass", "import time; time.sleep(60)"])
def test_a_timeout_comes_on_time_also_inside_a_long_c_call(sandbox: Sandbox, code: str) -> None:
    result = sandbox.run(code, timeout_s=0.5)
    assert result.status is Status.TIMEOUT
    assert 0.5 <= result.wall_seconds < 5


def test_what_was_printed_without_flushing_before_a_timeout_is_there(sandbox: Sandbox) -> None:
    result = sandbox.run("import time; print('partial', end=''); time.sleep(60)", timeout_s=0.5)
    assert (result.status, result.stdout) == (Status.TIMEOUT, b"partial")


def test_a_program_cannot_put_off_its_timeout_by_ignoring_signals(sandbox: Sandbox) -> None:
    code = (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    )
    assert sandbox.run(code, timeout_s=0.5).status is Status.TIMEOUT


def test_the_cpu_limit_is_a_timeout_too(sandbox: Sandbox) -> None:
    result = sandbox.run("while True: pass", limits=Limits(wall_seconds=60, cpu_seconds=1))
    assert result.status is Status.TIMEOUT
    # The limit counts from the process's start, the result from the program's.
    assert 0.5 <= result.cpu_seconds < 10


def test_catching_everything_does_not_keep_a_program_alive(sandbox: Sandbox) -> None:
    code = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    assert sandbox.run(code, timeout_s=0.5).status is Status.TIMEOUT


# 11: memory


def test_much_memory_at_once_is_a_memory_limit(sandbox: Sandbox) -> None:
    result = sandbox.run("print('start'); x = bytearray(8 << 30)")
    assert result.status is Status.MEMORY_LIMIT
    assert result.stdout == b"start\n"


def test_slow_growth_is_a_memory_limit(sandbox: Sandbox) -> None:
    result = sandbox.run("x = []\nwhile True: x.append(bytearray(1 << 20))", memory_mb=100)
    assert result.status is Status.MEMORY_LIMIT


def test_growth_over_several_processes_is_a_memory_limit(sandbox: Sandbox) -> None:
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b"x") * (80 << 20)
        time.sleep(60)
time.sleep(60)
"""
    result = sandbox.run(code, memory_mb=200, timeout_s=60)
    assert result.status is Status.MEMORY_LIMIT


def test_memory_that_forks_share_is_counted_once(sandbox: Sandbox) -> None:
    code = """
import os, time
x = bytearray(b"x") * (60 << 20)
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.3)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""
    assert sandbox.run(code, memory_mb=150).status is Status.OK


def test_a_memory_error_that_the_program_handles_is_its_own_business(sandbox: Sandbox) -> None:
    code = "try: bytearray(8 << 30)\nexcept MemoryError: print('handled')"
    assert sandbox.run(code).stdout == b"handled\n"
