"""Virtual environments that several nox sessions share and that are installed once.

nox makes one environment per session; here torch, vLLM, DeepSpeed and Ray would then be installed a dozen
times. An environment made here carries a stamp of everything it was installed from: the requirements, the
constraints and the metadata of the distributions. While the stamp agrees, nothing is installed again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from workspace import ROOT

ENVIRONMENTS = ROOT / ".nox" / "shared"


class InterpreterNotFoundError(Exception):
    """No interpreter of the asked version is installed."""


def find_interpreter(version: str) -> str:
    """Path of an interpreter such as "3.11": this one, one on the PATH, or one of pyenv's.

    pyenv puts shims on the PATH that fail for a version that is installed but not selected, so each
    candidate is asked for its version.

    Raises:
        InterpreterNotFoundError: none answers with that version.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        sys.executable,
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))),
    ]
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    raise InterpreterNotFoundError(f"Python {version} is not installed; put python{version} on the PATH")


def fingerprint(requirements: Sequence[str], files: Iterable[Path]) -> str:
    """SHA-256 over requirement lines and the contents of files that an installation depends on."""
    digest = hashlib.sha256("\n".join(requirements).encode())
    for path in sorted(files):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def ensure(
    name: str,
    version: str,
    requirements: Sequence[str],
    *,
    constraints: Path | None = None,
    uninstall: Sequence[str] = (),
    sources: Iterable[Path] = (),
) -> Path:
    """Make the environment if it is absent or was made from something else; return its interpreter.

    Args:
        name: folder under `.nox/shared`.
        version: Python version, such as "3.11".
        requirements: arguments of `pip install`; paths are relative to the repository's root.
        constraints: file for `pip install -c`.
        uninstall: distributions taken out again afterwards.
        sources: further files whose change asks for a new installation. The pyproject.toml of every
            distribution and the constraints are always among them.

    Raises:
        InterpreterNotFoundError: no such Python.
        subprocess.CalledProcessError: pip failed; the environment is left without its stamp.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    stamp = folder / "installed-from.txt"
    metadata = [ROOT / "protos/pyproject.toml", *ROOT.glob("packages/*/pyproject.toml"), *sources]
    wanted = fingerprint(
        [version, *requirements, "without", *uninstall], [*metadata, *([constraints] if constraints else [])]
    )
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    stamp.unlink(missing_ok=True)
    if not python.exists():
        subprocess.run([find_interpreter(version), "-m", "venv", "--clear", folder], check=True)
    limits = ["-c", str(constraints)] if constraints else []
    _pip(python, "install", *limits, *requirements)
    if uninstall:
        _pip(python, "uninstall", "--yes", *uninstall)
    stamp.write_text(wanted)
    return python


def _pip(python: Path, *arguments: str) -> None:
    """Run pip, showing what it said only if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
