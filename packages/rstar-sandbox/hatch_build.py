"""Builds the optional C extension where there is a compiler; the package works without it.

RSTAR_SANDBOX_NO_EXTENSION=1 leaves it out on purpose.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = Path("src", "rstar_sandbox", "_hot.c")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # generic in name only
    """Compiles `_hot.c` into the wheel, or beside its source for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds a wheel."""
        if os.environ.get("RSTAR_SANDBOX_NO_EXTENSION"):
            return
        source = Path(self.root) / _SOURCE
        name = f"_hot{sysconfig.get_config_var('EXT_SUFFIX')}"
        if version == "editable":
            compiled = self._compile(source, source.with_name(name))
        else:
            target = Path(tempfile.mkdtemp(prefix="rstar-sandbox-build-")) / name
            compiled = self._compile(source, target)
            if compiled:
                build_data["force_include"][str(target)] = f"rstar_sandbox/{name}"
        if compiled:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _compile(self, source: Path, target: Path) -> bool:
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
        include = sysconfig.get_paths()["include"]
        command = [*compiler, "-O2", "-fPIC", "-shared", f"-I{include}", str(source), "-o", str(target)]
        try:
            # The compiler that Python itself was built with, or the one that whoever builds names.
            done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 - as said above
        except OSError as error:
            self.app.display_warning(f"without the C extension: {error}")
            return False
        if done.returncode != 0:
            self.app.display_warning(f"without the C extension: {done.stderr.strip()[-500:]}")
        return done.returncode == 0
