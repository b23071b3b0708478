"""Which distributions a change touches, with all that depend on them.

Run: `python tools/changed.py REF` prints one name a line. A change outside every distribution (tools,
constraints, tool settings, root tests) touches all of them; documentation touches none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping

from workspace import ROOT, Distribution, dependants, read_workspace

_DOCUMENTS = (".md", ".txt", "LICENSE", ".gitignore")
_TOUCH_ALL = ("tools/", "constraints/", "tests/", "pyproject.toml", "conftest.py", "noxfile.py")


def changed_files(ref: str) -> list[str]:
    """Paths that differ between the merge base with `ref` and the working tree, new files included."""
    base = _git("merge-base", ref, "HEAD")[0]
    return _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")


def touched(workspace: Mapping[str, Distribution], paths: Iterable[str]) -> list[str]:
    """Names of the distributions to test for a change of these paths, dependants included."""
    direct: set[str] = set()
    for path in paths:
        owner = next(
            (
                found.name
                for found in workspace.values()
                if path.startswith(found.folder.relative_to(ROOT).as_posix() + "/")
            ),
            None,
        )
        if owner and not path.endswith(_DOCUMENTS):
            direct.add(owner)
        elif not owner and path.startswith(_TOUCH_ALL):
            return list(workspace)
    return dependants(workspace, direct)


def _git(*arguments: str) -> list[str]:
    """Lines that a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def main() -> int:
    """Print the names."""
    if len(sys.argv) != 2:
        print("usage: changed.py REF", file=sys.stderr)
        return 2
    print("\n".join(touched(read_workspace(), changed_files(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
