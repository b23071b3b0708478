"""The trainer service with a run that stands still, so that its contract can be tested without training.

The servicer, its control object and the metrics log are the real ones; only the pipeline that would move them is
absent. Takes the options of every `serve` command, and `--run-dir`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from rstar_protos.cli import run
from rstar_protos.service import serve, serve_settings
from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.service import RunControl, TrainerServicer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    for option in ("--tls-cert", "--tls-key", "--tls-client-ca", "--token-file"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--watch-parent", action="store_true")
    settings = serve_settings(**vars(parser.parse_args()))

    async def host(folder: Path) -> None:
        with MetricsLog(folder, tensorboard=False) as log:
            for step in range(4):
                log.log("rl", global_step=step, stage="rl-1", values={"reward": step / 4})
            log.log("event", global_step=3, stage="rl-1", text="an event")
            control = RunControl("run-1", folder, "rl-1", step=3, stage_steps=8, global_step=3, phase="rollout")
            servicer = TrainerServicer(control, log)

            def register(server: object) -> None:
                trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)

            await serve(settings, "trainer", register, [trainer_pb2.DESCRIPTOR])

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(host(Path(folder)))


if __name__ == "__main__":
    run(main)
