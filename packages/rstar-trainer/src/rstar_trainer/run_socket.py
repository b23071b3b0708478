"""Where a running job listens: `status` and `stop` find the trainer service of a run folder here.

The job writes `trainer.json` into its folder while it runs. The socket is beside it when the path is
short enough for a Unix socket, and in a temporary folder otherwise.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar_protos.errors import UserInputError

__all__ = ["ENDPOINT_FILE", "is_running", "published_endpoint", "running_endpoint"]

ENDPOINT_FILE = "trainer.json"
_SOCKET = "trainer.sock"

# sun_path holds 108 bytes on Linux and 104 on macOS, the final NUL included.
_MAX_SOCKET_BYTES = 103


@contextmanager
def published_endpoint(run_dir: Path) -> Iterator[str]:
    """Chooses the endpoint ("unix:/path") of a run's trainer service and publishes it for the time of the run.

    Args:
        run_dir: the run folder; it exists.
    """
    with tempfile.TemporaryDirectory(prefix="rstar-trainer-") as short:
        socket = (run_dir / _SOCKET).resolve()
        if len(os.fsencode(socket)) > _MAX_SOCKET_BYTES:
            socket = Path(short) / _SOCKET
        endpoint = f"unix:{socket}"
        partial = (run_dir / ENDPOINT_FILE).with_suffix(".partial")
        partial.write_text(json.dumps({"endpoint": endpoint, "pid": os.getpid()}) + "\n", encoding="utf-8")
        partial.replace(run_dir / ENDPOINT_FILE)
        try:
            yield endpoint
        finally:
            (run_dir / ENDPOINT_FILE).unlink(missing_ok=True)
            socket.unlink(missing_ok=True)


def running_endpoint(run_dir: Path) -> str:
    """The endpoint of the job that runs in a folder.

    Raises:
        UserInputError: no such folder, or no job runs there.
    """
    if not run_dir.is_dir():
        raise UserInputError("run", str(run_dir), "should be the folder of a run")
    try:
        published = json.loads((run_dir / ENDPOINT_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        accepted = f"should be a folder whose run goes on; `rstar-trainer resume {run_dir}` continues a run that ended"
        raise UserInputError("run", str(run_dir), accepted) from None
    # A job that was killed leaves its file behind.
    if not _alive(int(published["pid"])):
        accepted = f"its process is gone; `rstar-trainer resume {run_dir}` continues it"
        raise UserInputError("run", str(run_dir), accepted)
    return str(published["endpoint"])


def is_running(run_dir: Path) -> bool:
    """Whether a job runs in a folder right now."""
    try:
        running_endpoint(run_dir)
    except UserInputError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
