"""A verifier that does what the answer tells it to do: hang, crash, eat memory. For tests of the workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement


class Misbehaving:
    """Answers are commands: loop, hang, wait SECONDS, memory, abort, killed, killed-once PATH, recurse, raise, pid,
    write PATH, spawn PATH, connect PORT, signal PID."""

    def extract(self, transcript: Transcript) -> Declared:
        return extract_answer(transcript)

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        return None

    def judge(self, gold: str, candidate: str) -> Judgement:
        command, _, argument = candidate.partition(" ")
        if command == "loop":
            while True:
                pass
        if command == "hang":  # one long call into C: no Python signal handler runs before it returns
            10 ** (10**9)
        if command == "wait":
            time.sleep(float(argument))
        if command == "memory":
            bytearray(8 * 1024**3)
        if command == "abort":
            os.abort()
        if command == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "killed-once" and Path(argument).stat().st_mtime != 1:
            os.utime(argument, (1, 1))  # a worker may not create files
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "write":
            Path(argument).write_text("x")
        if command == "spawn":
            subprocess.run(["touch", argument], check=True)
        if command == "connect":
            socket.create_connection(("127.0.0.1", int(argument)), timeout=1)
        if command == "signal":
            os.kill(int(argument), 0)
        if command == "recurse":
            return self.judge(gold, candidate)
        if command == "raise":
            raise LookupError("as told")
        if command == "pid":
            return Judgement(VerdictStatus.CORRECT, str(os.getpid()))
        return Judgement(VerdictStatus.CORRECT, "survived")

    def check_gold(self, gold: str) -> str | None:
        if gold == "loop":
            while True:
                pass
        return None

    def warm_up(self) -> None:
        pass


class NotAVerifier:
    """Lacks every method."""
