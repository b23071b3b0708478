"""The run folder: what a run is, written once at its start, so that it can be resumed and understood later."""

from __future__ import annotations

import fcntl
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe, recipe_from_mapping
from rstar_trainer.run_identity import package_versions

__all__ = ["RunFolder"]

_RUN_FILE, _SERVICE_FILE, _LOCK_FILE = "run.json", "trainer.json", "run.lock"


class RunFolder:
    """Paths and fixed facts of one run.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, recipe: Recipe) -> RunFolder:
        """A folder for a new run, with its recipe in it.

        Raises:
            UserInputError: the folder holds a run already, or cannot be made.
        """
        folder = cls(recipe.run_path)
        if folder.holds_run:
            raise UserInputError(
                "run_dir",
                str(folder.path),
                "a folder without a run in it, with --set run_dir=...; "
                f"`rstar-trainer resume {folder.path}` continues the run that it holds",
            )
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserInputError(
                "run_dir", str(folder.path), f"a folder that can be made ({error.strerror})"
            ) from error
        folder._write(
            _RUN_FILE,
            {
                "recipe": recipe.model_dump(mode="json"),
                "packages": package_versions(),
                "python": platform.python_version(),
            },
        )
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, Recipe]:
        """The folder of an earlier run and its recipe.

        Raises:
            UserInputError: there is no run in it.
        """
        folder = cls(path)
        try:
            values = json.loads((path / _RUN_FILE).read_text(encoding="utf-8"))
            return folder, recipe_from_mapping(values["recipe"])
        except (OSError, ValueError, KeyError) as error:
            raise UserInputError("run", str(path), f"the folder of a run, with {_RUN_FILE} in it") from error

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun in the folder."""
        return (self.path / _RUN_FILE).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second trainer out of the folder; released by the system however this process ends.

        Raises:
            UserInputError: a trainer is at work there.
        """
        with (self.path / _LOCK_FILE).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserInputError(
                    "run",
                    str(self.path),
                    "a run that no other trainer is at work in: a trainer is at work in it; stop that one first",
                ) from error
            yield

    def add_facts(self, **facts: Any) -> None:
        """Adds facts to `run.json`, such as where the weights came from."""
        values = json.loads((self.path / _RUN_FILE).read_text(encoding="utf-8"))
        self._write(_RUN_FILE, {**values, **facts})

    def withdraw(self) -> None:
        """Lets another run begin here: the one that was begun has been refused before it did anything."""
        (self.path / _RUN_FILE).unlink(missing_ok=True)

    def publish(self, endpoint: str, pid: int) -> None:
        """Records where the TrainerService of the running trainer listens."""
        self._write(_SERVICE_FILE, {"endpoint": endpoint, "pid": pid})

    def unpublish(self) -> None:
        """Removes that record when the trainer ends."""
        (self.path / _SERVICE_FILE).unlink(missing_ok=True)

    def endpoint(self) -> str:
        """Where the TrainerService of this run listens.

        Raises:
            UserInputError: no trainer is at work there.
        """
        try:
            endpoint: str = json.loads((self.path / _SERVICE_FILE).read_text(encoding="utf-8"))["endpoint"]
        except (OSError, ValueError, KeyError) as error:
            raise UserInputError("run", str(self.path), "a run that a trainer is at work in") from error
        return endpoint

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self.path / name)
