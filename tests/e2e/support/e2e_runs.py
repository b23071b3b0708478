"""Starting trainers as a user would, in processes of their own, and reading what they leave in the run folder."""

from __future__ import annotations

import functools
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import PATIENCE, alive, arguments_of, children_of, eventually

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import open_sync_channel
from rstar_trainer.control_client import run_status
from rstar_trainer.metrics_log import Record, read_records

__all__ = ["SCRIPTED_TRAINER", "Gates", "Run", "Trainer", "Workplace", "set_options", "stop_process", "write_rows"]

HERE = Path(__file__).resolve().parent.parent
TRAINER = ("-m", "rstar_trainer")
SCRIPTED_TRAINER = (str(HERE / "hosts" / "trainer.py"),)
RECIPES = HERE / "recipes"

# What tells an embedded service among the children of a trainer.
_SERVICE_MARKS = {
    "sandbox": "rstar_sandbox",
    "reward": "rstar_reward",
    "sampling": "serve-sampling",
    "rollout": "--model",
}
_TIMES = ("seconds", "per_second")


@dataclass(frozen=True)
class Run:
    """What is in a run folder."""

    folder: Path

    def records(self, kind: str, stage: str | None = None) -> list[Record]:
        """Records of the metrics log."""
        found = read_records(self.folder)
        return [record for record in found if record.kind == kind and stage in (None, record.stage)]

    def events(self) -> str:
        """All events, one a line."""
        return "\n".join(record.text for record in self.records("event"))

    def steps(self, stage: str | None = None) -> dict[int, tuple[str, dict[str, float]]]:
        """By global step: digest of the rollouts and all figures but times. A step that is there twice fails."""
        found: dict[int, tuple[str, dict[str, float]]] = {}
        for record in self.records("rl", stage):
            assert record.global_step not in found, f"step {record.global_step} is in the log twice"
            values = {name: value for name, value in record.values.items() if not name.endswith(_TIMES)}
            found[record.global_step] = (record.text, values)
        return found

    def trajectories(self, stage: str, step: int) -> list[dict[str, Any]]:
        """Rollouts of a step, from 1, with verdicts and decisions."""
        path = self.folder / "trajectories" / stage / f"step-{step:04d}.jsonl.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def checkpoints(self) -> list[str]:
        """Names of the complete checkpoints."""
        found = (self.folder / "checkpoints").glob("step-*")
        return sorted(path.name for path in found if path.suffix != ".partial" and (path / "state.json").is_file())

    @property
    def report(self) -> dict[str, Any]:
        """`report.json`."""
        content: dict[str, Any] = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        return content


@dataclass
class Trainer:
    """A trainer in a process of its own; its output goes to files."""

    process: subprocess.Popen[bytes]
    run: Run
    stdout: Path
    stderr: Path

    def wait(self, seconds: float = 600.0) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the trainer did not end within {seconds * PATIENCE:g} s:\n{self.told()}")

    def until(self, condition: Callable[[], object], what: str, seconds: float = 600.0) -> None:
        """Waits for something that the running trainer brings about."""

        def check() -> bool:
            if self.process.poll() is not None and not condition():
                pytest.fail(f"the trainer ended with {self.process.returncode} before {what}:\n{self.told()}")
            return bool(condition())

        eventually(check, f"{what}\n{self.told()}", seconds)

    def succeed(self) -> Run:
        """Waits for a good end and returns the run."""
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.told()}"
        return self.run

    def told(self) -> str:
        """The last of what it printed."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in (self.stdout, self.stderr))

    @property
    def errors(self) -> list[str]:
        """Its `error:` lines."""
        return [line for line in self.stderr.read_text().splitlines() if line.startswith("error:")]

    def signal(self, number: int) -> None:
        """Sends a signal to the trainer alone."""
        os.kill(self.process.pid, number)

    def service(self, name: str) -> int:
        """Process id of an embedded service; waits until it is there."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid in children_of(self.process.pid) if _is_service(name, pid)]
            return bool(found)

        self.until(look, f"the {name} service was started")
        return found[0]

    def replaced(self, name: str, former: int) -> None:
        """Waits until a service has another process."""
        self.until(lambda: self.service(name) != former, f"the {name} service has another process")

    def programs_running(self) -> int:
        """Programs that the run's sandbox runs now; 0 while it cannot tell."""
        arguments = arguments_of(self.service("rollout"))
        if "--sandbox" not in arguments:
            return 0
        with open_sync_channel(arguments[arguments.index("--sandbox") + 1]) as channel:
            stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
            request = sandbox_pb2.GetCapacityRequest()
            return int(stub.GetCapacity(request, timeout=60 * PATIENCE, wait_for_ready=True).running)


@dataclass
class Gates:
    """Where the scripted policy waits: at turns 0 and 1 of every training step that has not been opened.

    The policy's host makes a folder when the first rollout waits, and a file in it for each that has passed.
    """

    folder: Path

    def open(self, stage: str, step: int, *turns: int) -> None:
        """Lets the policy go on; steps count from 0, as in group ids."""
        for turn in turns or (0, 1):
            self._path(stage, step, turn).with_suffix(".open").touch()

    def reached(self, stage: str, step: int, turn: int) -> bool:
        """Whether a rollout waits there, or has waited."""
        return self._path(stage, step, turn).is_dir()

    def passed(self, stage: str, step: int, turn: int) -> int:
        """How many rollouts have gone on from there."""
        path = self._path(stage, step, turn)
        return len(os.listdir(path)) if path.is_dir() else 0

    def _path(self, stage: str, step: int, turn: int) -> Path:
        return self.folder / f"{stage}-{step}-{turn}"


@dataclass
class Workplace:
    """A folder for runs whose processes all carry one mark."""

    folder: Path
    mark: str
    environment: dict[str, str] = field(default_factory=dict)

    def train_on(self, kinds: Sequence[str]) -> None:
        """Trains on problems q0, q1, ... of these kinds, one each, whose answers the scripted policy knows too."""
        rows = [
            {"id": f"q{number}", "problem": f"{kind} is {number} plus 3?", "answer": str(number + 3)}
            for number, kind in enumerate(kinds)
        ]
        write_rows(self.folder / "train.jsonl", rows)
        with (self.folder / "gold.jsonl").open("a") as file:
            file.write((self.folder / "train.jsonl").read_text())

    def env(self, **more: str) -> dict[str, str]:
        """Environment of everything that is started here."""
        path = os.pathsep.join([os.environ["PATH"], self.mark])
        return {**os.environ, "PATH": path, "COLUMNS": "200", **self.environment, **more}

    def gates(self) -> Gates:
        """Gates for the runs that are started here from now on."""
        folder = self.folder / "gates"
        folder.mkdir()
        self.environment["RSTAR_E2E_GATES"] = str(folder)
        return Gates(folder)

    def status(self, name: str) -> dict[str, Any] | None:
        """What the TrainerService of a run says; None while there is none."""
        try:
            return run_status(self.folder / name)
        except UserInputError:
            return None

    def command(self, *arguments: str | Path, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Runs a Python module or script to its end."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds * PATIENCE,
            cwd=self.folder,
            env=self.env(),
            check=False,
        )

    def start(
        self,
        name: str,
        recipe: str,
        settings: Mapping[str, object] | None = None,
        *,
        trainer: tuple[str, ...] = TRAINER,
        **env: str,
    ) -> Trainer:
        """Starts `run` with a recipe of these tests; the run folder is called `name`."""
        arguments = ["run", str(RECIPES / f"{recipe}.toml"), *set_options({"run_dir": name, **(settings or {})})]
        return self._start(name, [*trainer, *arguments], env)

    def resume(self, name: str, *, trainer: tuple[str, ...] = TRAINER, **env: str) -> Trainer:
        """Starts `resume`."""
        return self._start(name, [*trainer, "resume", name], env)

    def _start(self, name: str, arguments: list[str], env: Mapping[str, str]) -> Trainer:
        number = len(list(self.folder.glob(f"{name}-*.out")))
        stdout, stderr = (self.folder / f"{name}-{number}.{end}" for end in ("out", "err"))
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=self.env(**env),
                start_new_session=True,
                # A shell makes its background jobs ignore Ctrl-C; what it ignores, children inherit.
                preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        return Trainer(process, Run(self.folder / name), stdout, stderr)


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def set_options(settings: Mapping[str, object]) -> list[str]:
    """`--set` options."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={_toml(value)}")]


def stop_process(process: subprocess.Popen[Any]) -> None:
    """Ends a process gently, then not."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(10)
            return
        except subprocess.TimeoutExpired:
            continue


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _is_service(name: str, pid: int) -> bool:
    return _SERVICE_MARKS[name] in arguments_of(pid) and alive(pid)
