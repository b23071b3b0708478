"""Embedded services: a real service in a child process on a private Unix socket.

The child ends with its parent (it watches its standard input) and is started again on the same socket when it dies,
so that clients only see a short UNAVAILABLE that they retry.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.own_folders import make_folder, remove_stale_folders

__all__ = ["EmbeddedService"]

_FOLDER_PREFIX = "rstar-service-"
_STOP_SECONDS = 10.0
# A child that dies this soon after it was ready has not really come back.
_SETTLE_SECONDS = 2.0
_LOG_TAIL_LINES = 20


class EmbeddedService:
    """A service that lives as long as this process, restarted when it dies.

    Args:
        name: for messages and the socket file.
        command: the command line without `--listen` and `--watch-parent`, which are appended.
        runtime_dir: where the socket is made; None: a private temporary folder.
        log_path: file that receives the child's standard error; None: a file in the runtime folder.
        env: environment variables added to the parent's.
        start_seconds: how long one start may take.
        max_failed_restarts: consecutive failed restarts after which the service is given up.
        on_restart: called with the number of restarts so far, from the monitor thread.
        on_failure: called with the reason when the service is given up, from the monitor thread.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        runtime_dir: Path | None = None,
        log_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        start_seconds: float = 180.0,
        max_failed_restarts: int = 3,
        on_restart: Callable[[int], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.restarts = 0
        self.failure: str | None = None
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._start_seconds = start_seconds
        self._max_failed = max_failed_restarts
        self._on_restart, self._on_failure = on_restart, on_failure
        self._own_dir_lock: int | None = None
        if runtime_dir is None:
            remove_stale_folders(tempfile.gettempdir(), _FOLDER_PREFIX)  # of processes that were killed
            folder, self._own_dir_lock = make_folder(tempfile.gettempdir(), _FOLDER_PREFIX)
            runtime_dir = Path(folder)
        self._dir = Path(runtime_dir)
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket = self._dir / f"{name}.sock"
        self._log_path = Path(log_path) if log_path else self._dir / f"{name}.log"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._monitor: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """The client-side endpoint; the same after every restart."""
        return f"unix:{self._socket}"

    @property
    def pid(self) -> int | None:
        """Process id of the current child."""
        return self._process.pid if self._process else None

    def start(self) -> str:
        """Starts the child, waits until it is ready and returns its endpoint.

        Raises:
            UserInputError: the child refused its input (its one-line error is passed on).
            ServiceUnavailableError: it ended or did not get ready in time.
        """
        self._process = self._spawn()
        atexit.register(self.stop)
        self._monitor = threading.Thread(target=self._watch, name=f"embedded-{self.name}", daemon=True)
        self._monitor.start()
        return self.endpoint

    def stop(self) -> None:
        """Ends the child: SIGTERM, a grace period, SIGKILL. Calling it twice is harmless."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        atexit.unregister(self.stop)
        if self._process is not None:
            _end(self._process)
        if self._monitor is not None:
            self._monitor.join(_STOP_SECONDS)
        if self._process is not None:
            _end(self._process)
        with contextlib.suppress(FileNotFoundError):
            self._socket.unlink()
        if self._own_dir_lock is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            os.close(self._own_dir_lock)
            self._own_dir_lock = None

    def __enter__(self) -> EmbeddedService:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - the command comes from our own code
                [*self._command, "--listen", self.endpoint, "--watch-parent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                # Ctrl-C reaches the parent alone, which then stops its services in order.
                start_new_session=True,
            )
        try:
            self._await_ready(process)
        except BaseException:
            _end(process)
            raise
        assert process.stdout is not None
        threading.Thread(target=_drain, args=(process.stdout, self._log_path), daemon=True).start()
        return process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        descriptor, give_up, pending = process.stdout.fileno(), time.monotonic() + self._start_seconds, b""
        while time.monotonic() < give_up and not self._stopping.is_set():
            if not select.select([descriptor], [], [], 0.2)[0]:
                continue
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise self._start_error(process.wait(_STOP_SECONDS))
            *lines, pending = (pending + chunk).split(b"\n")
            if any(_is_ready_line(line) for line in lines):
                return
        raise ServiceUnavailableError(
            f"the {self.name} service was not ready within {self._start_seconds:g} s; its log: {self._log_path}"
        )

    def _start_error(self, code: int) -> Exception:
        tail = _tail(self._log_path)
        message = next((line[len("error: ") :] for line in reversed(tail) if line.startswith("error: ")), None)
        if code == 2 and message:
            return UserInputError.message(f"{self.name} service: {message}")
        reason = message or (tail[-1] if tail else "no output")
        return ServiceUnavailableError(
            f"the {self.name} service ended with exit code {code} before it was ready: {reason}"
        )

    def _watch(self) -> None:
        failed = 0
        while not self._stopping.is_set():
            process, ready_at = self._process, time.monotonic()
            assert process is not None
            code = process.wait()
            if self._stopping.is_set():
                return
            _end_session(process.pid)
            failed = failed + 1 if time.monotonic() - ready_at < _SETTLE_SECONDS and self.restarts else 0
            reason = f"ended with code {code}"
            while failed < self._max_failed and not self._stopping.is_set():
                try:
                    self._process = self._spawn()
                    break
                except Exception as error:  # whatever it was, it is a failed restart
                    failed, reason = failed + 1, str(error)
                    self._stopping.wait(min(0.2 * 2**failed, 5.0))
            else:
                self._give_up(failed, reason)
                return
            self.restarts += 1
            if self._on_restart:
                self._on_restart(self.restarts)

    def _give_up(self, failed: int, reason: str) -> None:
        if self._stopping.is_set():
            return
        self.failure = f"the {self.name} service could not be restarted ({failed} attempts failed): {reason}"
        if self._on_failure:
            self._on_failure(self.failure)


def _is_ready_line(line: bytes) -> bool:
    try:
        message = json.loads(line)
    except ValueError:
        return False
    return isinstance(message, dict) and "listening" in message


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _end_session(process.pid)


def _end_session(leader: int) -> None:
    """Ends what a child that is gone has started and not ended: an inference engine outlives it, with its memory."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _drain(stream: IO[bytes], log_path: Path) -> None:
    with contextlib.suppress(OSError, ValueError), log_path.open("ab") as log:
        for line in stream:
            log.write(line)
            log.flush()


def _tail(path: Path) -> list[str]:
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as log:
        return [line.rstrip() for line in collections.deque(log, _LOG_TAIL_LINES) if line.strip()]
    return []
