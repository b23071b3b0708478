"""Rules of this repository that no linter knows. Run: `python tools/house_rules.py`.

- no Python file is longer than 600 lines (one concept per file; aim for under 400);
- each `noqa` and `type: ignore` names its code, and in what is shipped a reason stands after it or as a comment
  above it; one comment may serve ignores on lines that follow each other. Codes that say the reason themselves
  need no other: a library without types, an import that has to come later;
- what a `UserInputError` says is accepted completes "accepted: ...": a noun phrase, never a sentence or an order.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from workspace import ROOT

MOST_LINES = 600
_GENERATED = ("_pb2.py", "_pb2_grpc.py")
_IGNORE = re.compile(r"#\s*(noqa|type:\s*ignore)\b(?P<rest>.*)$")
_CODE = re.compile(r"^(:\s*[A-Z]+\d+\b(,\s*[A-Z]+\d+\b)*|\[[\w, -]+\])")
_PLAIN_CODES = ("[import-untyped]", ": E402")
_REASON = re.compile(r"^[\s#-]+\w")
_ACCEPTED = 2  # the position of that argument
_SENTENCE = re.compile(
    r"^(give|name|use|install|check|choose|set|add|pip|it|they|this|should|must|known|expected)\b"
    r"|\b(must|should) (be|hold|not)\b"
)


def broken_rules(path: str, text: str) -> Iterator[str]:
    """Yield one line for each broken rule of one file."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        yield f"{path}: {len(lines)} lines; split it by concept, {MOST_LINES} is the limit"
    comment_above = False
    for number, line in enumerate(lines, start=1):
        found = _IGNORE.search(line)
        if not found:
            comment_above = line.lstrip().startswith("#")
            continue
        code = _CODE.match(found["rest"])
        if not code:
            yield f"{path}:{number}: name the code of this ignore"
        elif (
            not comment_above
            and "tests/" not in path
            and code[0] not in _PLAIN_CODES
            and not _REASON.match(found["rest"][code.end() :])
        ):
            yield f"{path}:{number}: give the reason of this ignore, after it or as a comment above"


def accepted_as_sentences(path: str, text: str) -> Iterator[str]:
    """Yield one line for each `UserInputError` whose third argument, as far as it is written out, is no noun phrase."""
    if "UserInputError(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "UserInputError"
            and len(node.args) > _ACCEPTED
        ):
            said = _beginning(node.args[_ACCEPTED])
            if _SENTENCE.search(said):
                yield f'{path}:{node.lineno}: "accepted: {said}" should go on with a noun phrase'


def _beginning(node: ast.expr) -> str:
    """The text that an expression begins with, as far as it is written out."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return _beginning(node.values[0])
    if isinstance(node, ast.BinOp):
        return _beginning(node.left)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def tracked_python_files(root: Path) -> list[str]:
    """Python files that git knows or would add, generated ones left out."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listing.splitlines() if not name.endswith(_GENERATED) and (root / name).exists()]


def main() -> int:
    """Print what is broken; the exit status is 1 if anything is."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in tracked_python_files(ROOT)}
    found = [line for name, text in texts.items() for line in broken_rules(name, text)]
    found += [line for name, text in texts.items() if "/src/" in name for line in accepted_as_sentences(name, text)]
    print("\n".join(found) if found else "house rules: kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
