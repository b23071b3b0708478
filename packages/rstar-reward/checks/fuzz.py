"""Fuzzing of the verifier: python checks/fuzz.py --cpu-seconds 3600 --processes 2 --report fuzz.json

Hypothesis generates pairs of texts, child processes judge them, the parent watches. What counts as a finding:

- a crash: an exception from the verifier, or a child that dies;
- a hang: a verdict that takes more than the soft deadline of 2 s of CPU and then does not give up by 3.5 s;
- an execution: an audit event of Python that shows text run as code, a process started or a file opened for writing;
- a broken property: an empty answer paid, or equality that is not symmetric between texts of the grammar.

Verdicts ended by the soft deadline are verdicts (`timeout`); they are counted and listed. All limits are in CPU time,
so that a busy machine changes nothing. Ends with status 1 if there are findings.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz_child import Shared, run_child

_HARD_SECONDS = 3.5


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Child:
    """One fuzzing process and what its parent knows about it."""

    def __init__(self, first_round: int, step: int) -> None:
        self.shared = Shared()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            try:
                run_child(self.shared, write, first_round, step)
            except BaseException:
                os.write(
                    write,
                    (json.dumps({"kind": "finding", "value": ["fuzzer", traceback.format_exc()]}) + "\n").encode(),
                )
            finally:
                os._exit(0)
        os.close(write)
        os.set_blocking(read, False)
        self._read, self._rest = read, b""

    def messages(self) -> list[dict[str, Any]]:
        """What it has told since the last time."""
        while True:
            try:
                part = os.read(self._read, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


def main() -> int:
    """Runs children until their CPU time reaches the budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="CPU time of all children together")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first round")
    parser.add_argument("--report", type=Path, help="JSON file, written as the run goes on")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    slow: list[object] = []
    findings: list[object] = []
    used, rounds, next_write = 0.0, arguments.first_seed, 0.0
    children: list[Child] = []

    def report() -> dict[str, object]:
        return {
            "cpu_seconds": round(used + sum(cpu_seconds(child.pid) for child in children), 1),
            "examples": sum(counts.values()),
            "counts": dict(counts.most_common()),
            "ended_by_soft_deadline": len(slow),
            "findings": findings[:200],
            "slow": slow[:200],
        }

    def hear(child: Child) -> None:
        for message in child.messages():
            if message["kind"] == "counts":
                counts.update(message["value"])
            else:
                (slow if message["kind"] == "slow" else findings).append(message["value"])

    while used + sum(cpu_seconds(child.pid) for child in children) < arguments.cpu_seconds or not children:
        while len(children) < max(arguments.processes, 1):
            children.append(Child(rounds, 1_000_000))
            rounds += 1
        time.sleep(0.2)
        for child in list(children):
            start, pair = child.shared.current()
            try:
                spent = cpu_seconds(child.pid)
            except OSError:
                spent = 0.0
            if start and spent - start > _HARD_SECONDS * 2:  # a pair and its mirror image
                findings.append(["hang", pair])
                os.kill(child.pid, signal.SIGKILL)
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            hear(child)
            if ended:
                used += usage.ru_utime + usage.ru_stime
                if os.WIFSIGNALED(status) and not (start and spent - start > _HARD_SECONDS * 2):
                    findings.append(["died", os.WTERMSIG(status), pair])
                children.remove(child)
        if arguments.report and time.monotonic() > next_write:
            arguments.report.write_text(json.dumps(report(), indent=1))
            next_write = time.monotonic() + 20
    final = report()
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    if arguments.report:
        arguments.report.write_text(json.dumps(final, indent=1))
    print(json.dumps(final, indent=1))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
