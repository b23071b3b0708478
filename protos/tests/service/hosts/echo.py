"""A small real service for the tests of the transport: SamplingService that answers after `epsilon` seconds.

`--die FILE`: ends at once, before it is ready, while FILE exists.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from rstar_protos import cli
from rstar_protos.errors import UserInputError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import abort_with_retry_hint, serve, serve_settings


class Echo(sampling_pb2_grpc.SamplingServiceServicer):
    """Answers with the group id; `keep` 99 is refused twice before it is answered."""

    def __init__(self) -> None:
        self.refusals = 2

    async def ResampleGroup(self, request: Any, context: Any) -> Any:
        """The only method."""
        await asyncio.sleep(request.epsilon)
        if request.keep == 99 and self.refusals:
            self.refusals -= 1
            await abort_with_retry_hint(context, "full", retry_after_ms=5)
        return sampling_pb2.ResampleGroupResponse(group_id=request.group_id)


def option(name: str) -> str:
    """Value of a command-line option, "" without it."""
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


def main() -> None:
    """Serves until stopped."""
    if option("--die") and Path(option("--die")).exists():
        raise UserInputError("--die", option("--die"), "remove it")
    settings = serve_settings(option("--listen"), watch_parent="--watch-parent" in sys.argv)
    asyncio.run(
        serve(
            settings,
            "echo",
            lambda server: sampling_pb2_grpc.add_SamplingServiceServicer_to_server(Echo(), server),
            [sampling_pb2.DESCRIPTOR],
        )
    )


if __name__ == "__main__":
    cli.run(main)
