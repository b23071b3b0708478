"""Which packages a change asks to test."""

import pytest
from changed import touched
from workspace import read_workspace

WORKSPACE = read_workspace()


def test_a_package_is_tested_with_what_depends_on_it() -> None:
    found = touched(WORKSPACE, ["packages/rstar-rollout/src/rstar_rollout/roc.py"])
    assert found == ["rstar-rollout", "rstar-eval", "rstar-trainer"]


def test_contracts_touch_every_package() -> None:
    assert touched(WORKSPACE, ["protos/src/rstar_protos/common/v1/common.proto"]) == list(WORKSPACE)


def test_a_dependency_through_an_extra_counts() -> None:
    assert "rstar-eval" in touched(WORKSPACE, ["packages/rstar-sandbox/src/rstar_sandbox/limits.py"])


@pytest.mark.parametrize("path", ["tools/workspace.py", "pyproject.toml", "constraints/torch.txt", "conftest.py"])
def test_what_all_packages_are_tested_with_touches_all(path: str) -> None:
    assert touched(WORKSPACE, [path]) == list(WORKSPACE)


@pytest.mark.parametrize("path", ["README.md", "docs/architecture.md", "packages/rstar-model/README.md"])
def test_documentation_touches_none(path: str) -> None:
    assert touched(WORKSPACE, [path]) == []


def test_the_metadata_of_a_package_is_not_documentation() -> None:
    assert touched(WORKSPACE, ["packages/rstar-trainer/pyproject.toml"]) == ["rstar-trainer"]
