"""What `doctor` finds."""

from __future__ import annotations

from dataclasses import replace

from rstar_sandbox.doctor import examine, missing_for
from rstar_sandbox.isolation import Plan
from rstar_sandbox.levels import CONTAINER, FULL, LEVELS, USER


def test_doctor_finds_a_working_sandbox() -> None:
    findings = examine()
    assert findings["self-test"]["passed"], findings
    assert findings["isolation level"] in LEVELS
    assert findings["attacks that succeed"] == [] or findings["isolation level"] not in (FULL, USER, CONTAINER)


def test_what_is_missing_for_the_next_level_is_named() -> None:
    bare = Plan()
    assert missing_for(bare) == ["container: system call filter", "container: landlock"]
    contained = replace(bare, system_call_filter=True, landlock=True)
    contained = replace(contained, level=contained.earned_level())
    assert missing_for(contained) == ["user: namespaces"]
    user = replace(contained, namespaces=True, user_namespace=True)
    user = replace(user, level=user.earned_level())
    assert missing_for(user) == ["full: own user", "full: control groups", "full: the rights of root"]


def test_nothing_is_missing_at_the_highest_level() -> None:
    assert missing_for(Plan(level=FULL)) == []
