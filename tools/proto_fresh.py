"""Are the committed gRPC stubs what the pinned generator makes of the .proto files?

Run: `python tools/proto_fresh.py` compares and exits 1 on a difference; `--write` brings the stubs up to date.
It needs the generator that the `protos-fresh` session installs: generated code refuses a protobuf older than
its generator, so the generator is the oldest release that rstar-protos supports.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from workspace import ROOT

SOURCES = ROOT / "protos" / "src"
_GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def generate(sources: Path, target: Path) -> None:
    """Run protoc over every .proto below `sources/rstar_protos`, writing stubs below `target`."""
    names = sorted(path.relative_to(sources).as_posix() for path in sources.glob("rstar_protos/*/v1/*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *names]
    subprocess.run(command, cwd=sources, check=True)


def stubs(folder: Path) -> dict[str, bytes]:
    """Generated files below a folder by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for pattern in _GENERATED
        for path in folder.glob(f"rstar_protos/*/v1/{pattern}")
    }


def differences(committed: dict[str, bytes], fresh: dict[str, bytes]) -> list[str]:
    """One line for each stub that is missing, left over or out of date."""
    return [
        f"{name}: {'missing' if name not in committed else 'no source' if name not in fresh else 'out of date'}"
        for name in sorted(committed.keys() | fresh.keys())
        if committed.get(name) != fresh.get(name)
    ]


def main() -> int:
    """Compare or write."""
    with tempfile.TemporaryDirectory() as temporary:
        generate(SOURCES, Path(temporary))
        found = differences(stubs(SOURCES), stubs(Path(temporary)))
        if "--write" in sys.argv[1:]:
            for name, content in stubs(Path(temporary)).items():
                (SOURCES / name).write_bytes(content)
            print("\n".join(found) or "stubs were fresh", "(written)")
            return 0
    print("\n".join(found) if found else "stubs are fresh")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
