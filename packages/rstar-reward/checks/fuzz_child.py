"""One process of the fuzzer: judges examples, watches what Python executes, and tells its parent what it is at."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from fuzz_pairs import strategies
from hypothesis import HealthCheck, Phase, given, seed, settings

__all__ = ["SOFT_SECONDS", "Shared", "run_child"]

SOFT_SECONDS = 2.0
_ROUND = 400
_HEADER = struct.Struct("=dI")
_AREA = 1 << 20


class Shared:
    """What a child tells its parent at every moment: CPU time at which it began on which pair; 0 between pairs."""

    def __init__(self) -> None:
        self._area = mmap.mmap(-1, _AREA)

    def begin(self, pair: tuple[str, str]) -> None:
        """A pair is being judged from now on."""
        body = json.dumps(pair).encode()[: _AREA - _HEADER.size]
        self._area[_HEADER.size : _HEADER.size + len(body)] = body
        self._area[: _HEADER.size] = _HEADER.pack(time.process_time() or 1e-9, len(body))

    def end(self) -> None:
        """No pair is being judged."""
        self._area[: _HEADER.size] = _HEADER.pack(0.0, 0)

    def current(self) -> tuple[float, str]:
        """CPU time at the beginning of the pair, 0.0 between pairs, and the last pair."""
        start, length = _HEADER.unpack(self._area[: _HEADER.size])
        return start, self._area[_HEADER.size : _HEADER.size + length].decode(errors="replace")


_watching = False
_executed: list[str] = []


_SUSPICIOUS = frozenset({
    "exec", "compile", "open", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
    "socket.connect",
    "os.remove", "os.rename", "os.mkdir", "shutil.rmtree", "ctypes.dlopen",
})  # fmt: skip
# Libraries that write code of their own, from sizes and names that they choose.
_GENERATORS = ("sympy/polys/monomials.py", "sympy/utilities/lambdify.py", "collections/__init__.py", "dataclasses.py")


def _is_module(event: str, arguments: tuple[Any, ...]) -> bool:
    """True for the code of a library module that is being imported."""
    if event == "exec":
        return isinstance(arguments[0], CodeType) and arguments[0].co_filename.endswith(".py")
    return str(arguments[1]).endswith(".py")


def _generates_code(frame: FrameType | None) -> bool:
    """True when the nearest code of a file is one of the generators, or a module is being imported."""
    nearest: str | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return True
        if nearest is None and name.endswith(".py"):
            nearest = name
        frame = frame.f_back
    return nearest is not None and nearest.endswith(_GENERATORS)


def watch_for_execution() -> None:
    """Records audit events that mean that a text was run; imports of library modules are none."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _watching or event not in _SUSPICIOUS:
            return
        if event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
            return
        if event in ("exec", "compile") and (_is_module(event, arguments) or _generates_code(sys._getframe(1))):
            return
        _executed.append(f"{event} {str(arguments)[:200]}")

    sys.addaudithook(hook)


def run_child(shared: Shared, output: int, first_round: int, step: int) -> None:
    """Judges rounds of examples until it is killed; writes JSON lines of counts and findings."""
    global _watching
    from rstar_reward.judge import prepare
    from rstar_reward.math.equivalence import compare
    from rstar_reward.math.lexer import ParseError
    from rstar_reward.math.nodes import Measured, walk
    from rstar_reward.math.normalise import normalise
    from rstar_reward.math.parser import parse_answer
    from rstar_reward.math.rationals import NoValueError
    from rstar_reward.math.units import known_unit
    from rstar_reward.verdict import Verdict, VerdictStatus
    from rstar_reward.verifiers import load_verifier

    sys.setrecursionlimit(3000)
    load_verifier("math").warm_up()
    watch_for_execution()
    counts: Counter[str] = Counter()

    def tell(kind: str, value: object) -> None:
        os.write(output, (json.dumps({"kind": kind, "value": value}) + "\n").encode())

    current: list[tuple[str, str]] = [("", "")]

    def give_up(number: int, frame: FrameType | None) -> None:
        # As in a worker: a process that ends leaves no half-filled caches behind.
        tell("counts", dict(counts))
        tell("slow", current[0])
        os._exit(0)

    signal.signal(signal.SIGPROF, give_up)

    def judged(judge: Callable[[], VerdictStatus]) -> VerdictStatus:
        signal.setitimer(signal.ITIMER_PROF, SOFT_SECONDS)
        try:
            return judge()
        except MemoryError:
            return VerdictStatus.TOO_COMPLEX
        except RecursionError:
            return VerdictStatus.TOO_COMPLEX
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def has_mirror_image(text: str) -> bool:
        """Readable, and without a word that only a reference may add to its value (`6 foo` for an answer of `6`)."""
        try:
            parts = walk(parse_answer(normalise(text)))
            return all(known_unit(part.unit) is not None for part in parts if isinstance(part, Measured))
        except (ParseError, NoValueError, RecursionError):
            return False

    def one(pair: tuple[str, str]) -> None:
        global _watching
        gold, candidate = current[0] = pair
        shared.begin(pair)
        try:
            _watching = True
            prepared = prepare(gold, f"<answer>\\boxed{{{candidate}}}</answer>")
            status = prepared.status if isinstance(prepared, Verdict) else None
            if isinstance(prepared, Verdict):
                counts[f"quick {prepared.status.value}"] += 1
            else:
                status = judged(lambda: compare(prepared.gold, prepared.candidate).status)
                counts[status.value] += 1
                if status in (VerdictStatus.CORRECT, VerdictStatus.WRONG) and all(
                    has_mirror_image(text) for text in pair
                ):
                    back = prepare(prepared.candidate, f"<answer>\\boxed{{{gold}}}</answer>")
                    if not isinstance(back, Verdict) and back.candidate == gold.strip():
                        other = judged(lambda: compare(back.gold, back.candidate).status)
                        # What is unusable as a reference, or a hedge, has no mirror image.
                        if other in (VerdictStatus.CORRECT, VerdictStatus.WRONG) and other is not status:
                            tell("finding", ["not symmetric", *pair, status.value])
            if (
                status is VerdictStatus.CORRECT
                and not any(character.isalnum() or ord(character) > 127 for character in candidate)
                and "\\" not in candidate
            ):
                tell("finding", ["paid for nothing", *pair])
        except Exception:
            tell("finding", ["crash", *pair, traceback.format_exc(limit=-4)])
        finally:
            _watching = False
            shared.end()
        while _executed:
            tell("finding", ["execution", *pair, _executed.pop()])

    number = first_round
    while True:
        test = settings(
            max_examples=_ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(strategies())(one))
        seed(number)(test)()
        tell("counts", dict(counts))
        counts.clear()
        number += step
