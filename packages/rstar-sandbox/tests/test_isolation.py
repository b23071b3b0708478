"""What the probe promises is in force, and what is seen matches it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rstar_sandbox import Sandbox
from rstar_sandbox.doctor import examine
from rstar_sandbox.isolation import Plan, user_of_slot
from rstar_sandbox.levels import LEVELS


@pytest.fixture(scope="module")
def plan() -> Plan:
    from rstar_sandbox.doctor import probe_apart

    return probe_apart()


def test_the_level_in_results_is_the_one_that_the_probe_finds(sandbox: Sandbox, plan: Plan) -> None:
    assert sandbox.run("1").isolation == plan.level


def test_programs_have_no_capabilities(sandbox: Sandbox) -> None:
    value = sandbox.run("[l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapPrm', 'CapEff'))]").value
    assert value == str(["0" * 16] * 2)


def test_programs_gain_no_privileges(sandbox: Sandbox) -> None:
    assert (
        sandbox.run("[l.split()[1] for l in open('/proc/self/status') if l.startswith('NoNewPrivs')]").value == "['1']"
    )


def test_programs_run_under_the_planned_user(sandbox: Sandbox, plan: Plan) -> None:
    import os

    own = sandbox.run("import os; os.getuid()").value
    assert own is not None
    assert (int(own) != os.getuid()) == plan.own_user


def test_slots_have_users_of_their_own_where_that_works() -> None:
    assert user_of_slot(Plan(own_user=False), 7, 1) is None
    assert user_of_slot(Plan(own_user=True), 7, 1) != user_of_slot(Plan(own_user=True), 7, 2)


def test_new_namespaces_are_refused_to_programs(sandbox: Sandbox, plan: Plan) -> None:
    assert plan.system_call_filter
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n(libc.unshare(0x10000000), ctypes.get_errno())"
    assert sandbox.run(code).value == "(-1, 1)"


def test_doctor_finds_a_working_sandbox() -> None:
    findings = examine()
    assert findings["self-test"]["passed"]
    assert findings["isolation level"] in LEVELS


def test_importing_the_package_loads_neither_grpc_nor_numpy() -> None:
    program = (
        "import sys, rstar_sandbox, rstar_sandbox.zygote\n"
        "print([name for name in ('grpc', 'google.protobuf', 'numpy', 'torch') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert answer.stdout == "[]\n"
