"""The documented commands are the ones that are run."""

import re

import pytest
from workspace import ROOT, read_workspace

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3.11 -m venv")]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert len(commands) == 2
    assert f"\n{commands[1]} " in script


@pytest.mark.parametrize("name", list(read_workspace()))
def test_the_readme_names_every_distribution(name: str) -> None:
    assert f"[{name}]" in README


@pytest.mark.parametrize("name", list(read_workspace()))
def test_every_distribution_has_a_changelog_of_its_version(name: str) -> None:
    folder = read_workspace()[name].folder
    version = next(
        line.split('"')[1]
        for line in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines()
        if line.startswith("version = ")
    )
    assert f"\n## {version}" in (folder / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0]
            if target.startswith("https://"):
                continue
            path, _, section = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not section or section in sections_of(linked.read_text(encoding="utf-8")), f"{page.name}: {target}"


def sections_of(text: str) -> set[str]:
    """What links to the headings of a page are called."""
    titles = [line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
