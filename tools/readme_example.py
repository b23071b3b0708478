"""The first Python example of a README, and the extras that its install line asks for.

Run: `python tools/readme_example.py README.md` prints the example.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_PYTHON_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
_INSTALL_LINE = re.compile(r"^\s*(?:\$ )?pip install\b(?P<arguments>.*)$", re.MULTILINE)


def first_example(readme: str) -> str:
    """Code of the first ```python block.

    Raises:
        ValueError: there is none.
    """
    found = _PYTHON_BLOCK.search(readme)
    if not found:
        raise ValueError("the README has no ```python block")
    return found["code"]


def install_extras(readme: str, distribution: str) -> list[str]:
    """Extras that the first `pip install` line of the README names for the distribution."""
    line = _INSTALL_LINE.search(readme)
    found = line and re.search(re.escape(distribution) + r"\[(?P<extras>[\w, -]+)\]", line["arguments"])
    return [extra.strip() for extra in found["extras"].split(",")] if found else []


if __name__ == "__main__":
    sys.stdout.write(first_example(Path(sys.argv[1]).read_text(encoding="utf-8")))
