"""What the probe promises is in force, and what is seen matches it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from rstar_sandbox import ExecutionResult, Sandbox, Status
from rstar_sandbox.isolation import Plan, user_of_slot
from rstar_sandbox.levels import CONTAINER, FULL, LEVELS, LIMITS, OFF, USER, is_at_least
from rstar_sandbox.probe import probe

ALL = Plan(
    level=FULL,
    namespaces=True,
    own_user=True,
    drop_capabilities=True,
    control_groups=True,
    system_call_filter=True,
    landlock=True,
    confined_signals=True,
)


def _seen(result: ExecutionResult) -> object:
    assert result.status is Status.OK, result
    return ast.literal_eval(result.value or "")


def test_the_level_is_in_every_result(sandbox: Sandbox) -> None:
    levels = {sandbox.run(code).isolation for code in ("1", "1 / 0", "import os; os._exit(3)", "(")}
    assert len(levels) == 1
    assert levels <= set(LEVELS)


def test_this_world_has_more_than_limits(sandbox: Sandbox) -> None:
    assert is_at_least(sandbox.run("").isolation, CONTAINER)


def test_programs_have_no_capabilities(sandbox: Sandbox) -> None:
    code = """
import ctypes
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
(ctypes.CDLL(None).capget(header, data), list(data))
"""
    assert _seen(sandbox.run(code)) == (0, [0] * 6)


def test_programs_gain_no_privileges(sandbox: Sandbox) -> None:
    assert _seen(sandbox.run("import ctypes; ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)")) == 1


def test_programs_of_root_run_under_another_user_at_full_level(sandbox: Sandbox) -> None:
    result = sandbox.run("import os; (os.getuid(), os.getgid(), os.getgroups())")
    user, group, groups = _seen(result)  # type: ignore[misc]
    assert user != 0 or result.isolation != FULL
    assert user == group or result.isolation != FULL
    assert groups == [] or result.isolation != FULL


def test_new_namespaces_are_refused_to_programs(sandbox: Sandbox) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
[(libc.unshare(flag), ctypes.get_errno()) for flag in (0x10000000, 0x20000000, 0x20000, 0x40000000)]
"""
    assert _seen(sandbox.run(code)) == [(-1, 1)] * 4


def test_a_program_is_no_process_1(sandbox: Sandbox) -> None:
    assert _seen(sandbox.run("import os; os.getpid() > 1")) is True


def test_only_the_runtime_and_the_scratch_space_can_be_read(sandbox: Sandbox, tmp_path: object) -> None:
    code = f"""
import os
found = []
for path in ({str(tmp_path)!r}, "/etc/shadow", "/etc/hostname", "/var", "/home", "/boot", "/sys", "/"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
        found.append(path)
    except OSError:
        pass
found
"""
    result = sandbox.run(code)
    allowed = ["/"] if is_at_least(result.isolation, USER) else []  # a root of its own
    assert _seen(result) == allowed


def test_slots_have_users_of_their_own_where_that_works() -> None:
    assert user_of_slot(Plan(own_user=False), 7, 1) is None
    users = {user_of_slot(Plan(own_user=True), zygote, slot) for zygote in (7, 8) for slot in (1, 2)}
    assert len(users) == 4


def test_a_level_is_earned_by_its_whole_list() -> None:
    assert ALL.earned_level() == FULL
    for missing in ("own_user", "control_groups"):
        assert Plan(**{**ALL.to_dict(), missing: False}).earned_level() == USER  # type: ignore[arg-type]
    assert Plan(**{**ALL.to_dict(), "namespaces": False}).earned_level() == CONTAINER  # type: ignore[arg-type]
    for missing in ("system_call_filter", "landlock"):
        assert Plan(**{**ALL.to_dict(), missing: False}).earned_level() == LIMITS  # type: ignore[arg-type]


@pytest.mark.parametrize("level", LEVELS)
def test_a_plan_that_is_limited_has_that_level_and_no_more(level: str) -> None:
    assert ALL.limited_to(level).level == level


def test_levels_are_ordered() -> None:
    assert [is_at_least(level, CONTAINER) for level in (OFF, LIMITS, CONTAINER, USER, FULL)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_lower_level_can_be_asked_for() -> None:
    assert probe(LIMITS).level == LIMITS
    assert probe(OFF).level == OFF


def test_importing_the_package_loads_neither_grpc_nor_numpy() -> None:
    program = (
        "import sys, rstar_sandbox, rstar_sandbox.zygote\n"
        "print([name for name in ('grpc', 'google.protobuf', 'numpy', 'torch') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert answer.stdout == "[]\n"
