"""Talking to a running job through the trainer service of its run folder: status, checkpoint, stop."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from rstar_protos.errors import UserInputError
from rstar_protos.service import open_sync_channel
from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_trainer.run_folder import RunFolder

__all__ = ["follow_metrics", "request_checkpoint", "request_stop", "run_status"]

_TIMEOUT_SECONDS = 10.0


def run_status(run_dir: Path) -> dict[str, Any]:
    """Where a run is: stage, step, phase, ...

    Raises:
        UserInputError: no trainer is at work in the folder.
    """
    with _stub(run_dir) as stub:
        response = stub.GetStatus(trainer_pb2.GetStatusRequest(), timeout=_TIMEOUT_SECONDS)
    values: dict[str, Any] = MessageToDict(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # JSON writes 64-bit integers as text.
    return {
        name: int(value) if name.endswith("step") or name == "stage_steps" else value for name, value in values.items()
    }


def request_checkpoint(run_dir: Path) -> int:
    """Asks for a checkpoint and returns the global step after which it will be written.

    Raises:
        UserInputError: no trainer is at work in the folder.
    """
    with _stub(run_dir) as stub:
        response = stub.RequestCheckpoint(trainer_pb2.RequestCheckpointRequest(), timeout=_TIMEOUT_SECONDS)
    return int(response.global_step)


def request_stop(run_dir: Path) -> None:
    """Asks a run to end after its current step, with a checkpoint.

    Raises:
        UserInputError: no trainer is at work in the folder.
    """
    with _stub(run_dir) as stub:
        stub.RequestStop(trainer_pb2.RequestStopRequest(), timeout=_TIMEOUT_SECONDS)


def follow_metrics(run_dir: Path, write: Callable[[str], None], *, follow: bool = True) -> None:
    """Hands the records of a run to `write` as JSON lines; with `follow` until the run ends.

    Raises:
        UserInputError: no trainer is at work in the folder.
    """
    request = trainer_pb2.StreamMetricsRequest(from_global_step=0, follow=follow)
    with _stub(run_dir) as stub:
        for record in stub.StreamMetrics(request):
            values = {name: None if math.isnan(value) else value for name, value in sorted(record.values.items())}
            line: Mapping[str, Any] = {
                "global_step": record.global_step,
                "stage": record.stage,
                "kind": record.kind,
                **({"values": values} if values else {}),
                **({"text": record.text} if record.text else {}),
            }
            write(json.dumps(line, ensure_ascii=False))


@contextmanager
def _stub(run_dir: Path) -> Iterator[trainer_pb2_grpc.TrainerServiceStub]:
    RunFolder.open(run_dir)
    with open_sync_channel(RunFolder(run_dir).endpoint()) as channel:
        try:
            yield trainer_pb2_grpc.TrainerServiceStub(channel)
        except grpc.RpcError as error:
            # A trainer that was killed leaves its address behind.
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                accepted = f"a run whose trainer answers (`rstar-trainer resume {run_dir}` continues one that ended)"
                raise UserInputError("run", str(run_dir), accepted) from None
            raise
