"""One verdict over the JUnit reports of all test sessions.

Run: `python tools/summarize_reports.py REPORTS ALLOWED_SKIPS`. The last line is `N passed, N failed, N skipped`.
The exit status is 1 if a test failed, if a test was skipped for a reason outside the allow-list, if a report
holds no test, or if there is no report at all. The allow-list has one regular expression a line, searched for in
`test id: reason`; `#` starts a comment.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Summary:
    """Counts over reports, and what stands against a pass."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The closing line."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_allowed(text: str) -> list[re.Pattern[str]]:
    """Patterns of an allow-list."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [re.compile(line) for line in lines if line]


def summarize(reports: Iterable[tuple[str, str]], allowed: Sequence[re.Pattern[str]]) -> Summary:
    """Count over (name, XML text) pairs of JUnit reports."""
    total = Summary()
    names = []
    for name, text in reports:
        names.append(name)
        try:
            cases = list(ElementTree.fromstring(text).iter("testcase"))
        except ElementTree.ParseError as error:
            total.problems.append(f"{name}: not a readable report ({error})")
            continue
        if not cases:
            total.problems.append(f"{name}: ran no test")
        elif all(case.find("skipped") is not None for case in cases):
            total.problems.append(f"{name}: every test was skipped")
        for case in cases:
            _count(case, allowed, total)
    if not names:
        total.problems.append("no report was written: no test session ran")
    return total


def _count(case: ElementTree.Element, allowed: Sequence[re.Pattern[str]], total: Summary) -> None:
    identity = f"{case.get('classname', '')}::{case.get('name', '')}"
    skip = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        total.failed += 1
        total.problems.append(f"failed: {identity}")
    elif skip is not None:
        total.skipped += 1
        # A module skipped as a whole has "collection skipped" as its message, and the reason in the text.
        reason = f"{identity}: {skip.get('message', '')} {skip.text or ''}".rstrip()
        if not any(pattern.search(reason) for pattern in allowed):
            total.problems.append(f"skip that is not on the allow-list: {reason}")
    else:
        total.passed += 1


def main() -> int:
    """Print the problems and the closing line."""
    if len(sys.argv) != 3:
        print("usage: summarize_reports.py REPORTS ALLOWED_SKIPS", file=sys.stderr)
        return 2
    reports, allowed = map(Path, sys.argv[1:])
    files = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(reports.glob("*.xml"))]
    total = summarize(files, read_allowed(allowed.read_text(encoding="utf-8")))
    for problem in total.problems:
        print(problem)
    print(total.line)
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
