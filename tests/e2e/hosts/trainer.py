"""The trainer's own command line, with the scripted policy in the place of the rollout service's engine.

All four services are embedded as ever. `RSTAR_E2E_BREAKS` names one that starts only once: see starts_once.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar_protos.service import EmbeddedService, embedded_group
from rstar_trainer import cli

HERE = Path(__file__).resolve().parent
# `python -m rstar_rollout serve`, whose options the scripted service takes as well.
_PROGRAM_PARTS = 4


class ScriptedService(EmbeddedService):
    """An embedded service whose command line is changed as the test asks."""

    def __init__(self, name: str, command: Sequence[str], **options: Any) -> None:
        if name == "rollout":
            command = [sys.executable, str(HERE / "rollout.py"), *command[_PROGRAM_PARTS:]]
        if name == os.environ.get("RSTAR_E2E_BREAKS"):
            # One folder per trainer: a resumed run is to break anew.
            done = Path(os.environ["RSTAR_E2E_GATES"]) / f"started-{name}-{os.getpid()}"
            command = [sys.executable, str(HERE / "starts_once.py"), str(done), *command]
        super().__init__(name, command, **options)


if __name__ == "__main__":
    embedded_group.EmbeddedService = ScriptedService  # type: ignore[misc]  # the class, not a name of the module
    cli.main()
