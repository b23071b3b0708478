"""Object addresses in output, made the same on every run.

`<function f at 0x7f3a5c0d2e60>` differs from run to run, and with it the tokens that a policy reads. Where a service
was given a seed, addresses are renumbered in the order in which they appear; equal ones stay equal.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rstar_sandbox.messages import Outcome

__all__ = ["with_stable_addresses"]

_ADDRESS = re.compile(rb"(?<= at 0x)[0-9a-f]+")
_FIRST, _STEP = 0x7F0000000010, 16


def with_stable_addresses(outcome: Outcome) -> Outcome:
    """The outcome with every ` at 0x...` renumbered; lengths stay, so an address that was cut stays cut."""
    known: dict[bytes, int] = {}

    def renumber(match: re.Match[bytes]) -> bytes:
        digits = match.group()
        number = known.setdefault(digits, _FIRST + len(known) * _STEP)
        return (b"%x" % number).ljust(len(digits), b"0")[: len(digits)]

    def in_text(text: str | None) -> str | None:
        return None if text is None else _ADDRESS.sub(renumber, text.encode("utf-8")).decode("utf-8")

    return replace(
        outcome,
        stdout=_ADDRESS.sub(renumber, outcome.stdout),
        stderr=_ADDRESS.sub(renumber, outcome.stderr),
        value=in_text(outcome.value),
        traceback=in_text(outcome.traceback),
    )
