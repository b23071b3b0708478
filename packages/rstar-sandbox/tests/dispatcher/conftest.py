"""Services in real processes: a dispatcher on a Unix socket and worker nodes that attach to it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Processes:
    """Starts services and ends what is left of them."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"unix:{self.folder / 'dispatcher.sock'}"

    def dispatcher(self, *options: str) -> subprocess.Popen[str]:
        return self._serve("--role", "dispatcher", "--listen", self.endpoint, *options)

    def worker(self, name: str, *options: str, slots: int = 2) -> subprocess.Popen[str]:
        sizes = ("--slots", str(slots), "--warm", "")
        return self._serve("--role", "worker", "--dispatcher", self.endpoint, "--name", name, *sizes, *options)

    def _serve(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rstar_sandbox", "serve", *options]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.started.append(process)
        assert process.stdout is not None
        assert "listening" in json.loads(process.stdout.readline())
        return process

    def close(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    # Not tmp_path: a socket path has at most 103 bytes, and tests have long names.
    with contextlib.closing(Processes(tmp_path_factory.mktemp("nodes"))) as started:
        yield started


@pytest.fixture
def killed() -> Callable[[subprocess.Popen[str]], None]:
    """Kills a process and waits for its end."""

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()

    return kill
