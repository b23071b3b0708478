"""The trainer service with a run that stands still, so that its contract can be tested without training.

The servicer, its control object and the metrics log are the real ones; only the pipeline that would move them is
absent.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import serve_options

from rstar_protos.cli import run
from rstar_protos.service import ServeSettings, serve
from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.service import RunControl, TrainerServicer


async def host(settings: ServeSettings, folder: Path) -> None:
    """Serves a run at step 3 of 8 with five records in its log."""
    with MetricsLog(folder, tensorboard=False) as log:
        for step in range(4):
            log.log("rl", global_step=step, stage="rl-1", values={"reward": step / 4})
        log.log("event", global_step=3, stage="rl-1", text="an event")
        control = RunControl("run-1", folder, "rl-1", step=3, stage_steps=8, global_step=3, phase="rollout")
        servicer = TrainerServicer(control, log)

        def register(server: object) -> None:
            trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)

        await serve(settings, "trainer", register, [trainer_pb2.DESCRIPTOR])


def main() -> None:
    """Entry point."""
    settings, _ = serve_options.parse()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(host(settings, Path(folder)))


if __name__ == "__main__":
    run(main)
