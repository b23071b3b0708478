"""A service under mixed load: python checks/soak.py --requests 10000

Through gRPC, with as many requests in flight as there are workers: answers of every form, repeated ones among them, 5 %
hostile expressions and 1 % that hang, crash, kill or overfill their worker. Prints one JSON object; ends with status 1
unless every request was answered once and within --max-seconds, every process of the service stayed within 1.2 GB, the
pool is at its full size in the end, and no payload had an effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rstar_protos.service import EmbeddedService
from rstar_reward import RewardClient
from rstar_reward.bench.workloads import pairs_of

_PLUGIN = Path(__file__).resolve().parents[1] / "tests" / "plugin"
_MAX_BYTES = 1_200_000_000

_PAYLOADS = (
    "__import__('os').system('touch {path}')",
    "open('{path}','w')",
    "exec(\"open('{path}','w')\")",
    "().__class__.__base__.__subclasses__()",
    "f(__import__('os').system('touch {path}'))",
    "\\gcd(open('{path}','w'), 4)",
    "\\text{{eval}}(open('{path}','w'))",
    "\\input{{|touch {path}}}",
    "$(touch {path})",
    "\\sum_{{k=open('{path}','w')}}^{{2}} k",
)
_BOMBS = (
    "9^{9^{9^{9}}}", "9**9**9**9", "(10^9)!", "((9!)!)!", "\\binom{10^{9}}{5\\cdot 10^8}", "\\sin(10^{10^{9}})",
    "\\sum_{k=1}^{10^{12}} \\frac{1}{k^3}", "(x+y+z+w+1)^{400}-(x+y+z+w)^{400}", "e^{e^{e^{79}}}",
    "\\lim_{x \\to 0} \\frac{\\sin^{50} x - x^{50}}{x^{52}}", "\\int_0^1 \\int_0^1 \\sin(x^{99}y^{99}) dx dy",
    "\\frac{(x+1)^{3000}-1}{x}", "\\prod_{k=1}^{99999} \\sin(k x)", "\\int_0^{\\infty} e^{-x^7} \\ln(x)^5 dx",
    "99999^{99999}", "\\sum_{k=1}^{99999} k^{99}", "\\lim_{n \\to \\infty} (1+\\frac{1}{n^3})^{n^{2}!}",
)  # fmt: skip
_KILLERS = ("abort", "killed", "memory", "hang", "recurse")

Request = tuple[str, str, str, str]


def requests_of(count: int, seed: int, target: Path) -> list[Request]:
    """(kind, gold, response, verifier) of each request."""
    chance = random.Random(seed)  # noqa: S311 - test data, not secrets
    hard, integers = pairs_of("hard", count // 2 + 1, seed), pairs_of("integers", count // 4 + 1, seed)
    plain = [("mixed", pair.gold, pair.response, "math") for pair in [*hard, *integers]]
    requests: list[Request] = []
    for index in range(count):
        draw = index % 100
        if draw == 0:
            requests.append(("killer", "g", f"\\boxed{{{chance.choice(_KILLERS)}}}", "misbehaving"))
        elif draw <= 5:
            text = chance.choice(_PAYLOADS).format(path=target) if index % 2 else chance.choice(_BOMBS)
            # Some differ by something small, so that few verdicts come from the cache.
            text = text if chance.random() < 0.5 else f"{text}+{chance.randrange(99)}"
            gold = chance.choice(("3", "\\frac{\\sqrt{2}}{2}", "x^2+1"))
            requests.append(("hostile", gold, f"<answer>\\boxed{{{text}}}</answer>", "math"))
        else:
            requests.append(chance.choice(plain))
    chance.shuffle(requests)
    return requests


class Watch:
    """Samples the processes below the service."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak_bytes = 0
        """The largest resident size that one process reached."""

    def children(self) -> set[int]:
        """All processes below the service."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
        found: set[int] = set()
        frontier = {self.root}
        while frontier:
            frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
            found |= frontier
        return found

    def sample(self) -> None:
        """Takes the peak resident size of each process so far."""
        for pid in self.children():
            try:
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)
            except OSError:
                continue


async def run(endpoint: str, requests: list[Request], workers: int, watch: Watch) -> dict[str, object]:
    """Sends all requests; what came back."""
    statuses: Counter[str] = Counter()
    seconds: list[tuple[float, str]] = []
    queue = iter(enumerate(requests))
    wrongly_paid: list[str] = []

    async def caller(client: RewardClient) -> None:
        for _, (kind, gold, response, verifier) in queue:
            start = time.monotonic()
            verdict = await client.score(gold, response, verifier=verifier)
            seconds.append((time.monotonic() - start, f"{kind}: {response[-80:]}"))
            statuses[f"{kind} {verdict.status.value}"] += 1
            if kind != "mixed" and verdict.reward == 1:
                wrongly_paid.append(response[-200:])

    async def sampler() -> None:
        while True:
            watch.sample()
            await asyncio.sleep(0.25)

    async with RewardClient(endpoint, timeout_seconds=120) as client:
        sampling = asyncio.ensure_future(sampler())
        await asyncio.gather(*(caller(client) for _ in range(workers)))
        sampling.cancel()
    slowest = sorted(seconds, reverse=True)[:5]
    return {
        "answered": len(seconds),
        "statuses": dict(statuses.most_common()),
        "wrongly_paid": wrongly_paid,
        "slowest_seconds": [[round(value, 2), text] for value, text in slowest],
        "median_seconds": sorted(value for value, _ in seconds)[len(seconds) // 2],
    }


def main() -> int:
    """Runs the service and the load."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=3.5, help="wall-clock time of one verdict")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PLUGIN), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "rstar_reward", "serve", "--workers", str(arguments.workers)]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "payload-ran"
        requests = requests_of(arguments.requests, arguments.seed, target)
        with EmbeddedService("reward", command) as service:
            assert service.pid is not None
            watch = Watch(service.pid)
            full = len(watch.children())
            report = asyncio.run(run(service.endpoint, requests, arguments.workers, watch))
            give_up = time.monotonic() + 20
            while len(watch.children()) != full and time.monotonic() < give_up:  # one that ended may still be there
                time.sleep(0.1)
            size = len(watch.children())
        executed = sorted(path.name for path in Path(folder).iterdir())
    slowest = report["slowest_seconds"]
    report |= {
        "ground_types": _ground_types(),
        "peak_bytes_of_one_process": watch.peak_bytes,
        "processes_before_and_after": [full, size],
        "files_that_payloads_made": executed,
    }
    print(json.dumps(report, indent=1))
    assert isinstance(slowest, list)
    good = (
        report["answered"] == len(requests)
        and not report["wrongly_paid"]
        and slowest[0][0] <= arguments.max_seconds
        and watch.peak_bytes <= _MAX_BYTES
        and size == full
        and not executed
    )
    return 0 if good else 1


def _ground_types() -> str:
    """`gmpy` where SymPy computes with gmpy2, else `python`."""
    from sympy.external.gmpy import GROUND_TYPES

    return str(GROUND_TYPES)


if __name__ == "__main__":
    sys.exit(main())
