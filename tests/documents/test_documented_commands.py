"""Commands that the documents name exist."""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "packages").glob("*/README.md")]
COMMAND = re.compile(r"\b(rstar-(?:sandbox|reward|model|rollout|eval|trainer)) ([a-z][a-z-]+)\b(?=[ `\n)])")
# Within code only: a sentence may say that "rstar-sandbox runs programs".
CODE = re.compile(r"```(?:bash|sh|console)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def documented() -> list[tuple[str, str]]:
    """Pairs of console script and subcommand that appear as code in a page."""
    code = "\n".join(block or line for page in PAGES for block, line in CODE.findall(page.read_text(encoding="utf-8")))
    return sorted(set(COMMAND.findall(code + "\n")))


@cache
def subcommands(script: str) -> str:
    """What `--help` of a console script prints."""
    path = shutil.which(script, path=str(Path(sys.executable).parent))
    assert path, f"{script} is not installed beside {sys.executable}"
    return subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("script", "subcommand"), documented(), ids=[" ".join(pair) for pair in documented()])
def test_a_documented_command_exists(script: str, subcommand: str) -> None:
    assert re.search(rf"^\W*{subcommand}\s", subcommands(script), re.MULTILINE)
