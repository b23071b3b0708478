"""Status, checkpoint and stop reach a real trainer service through the run folder."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.service import ServeSettings, start_server
from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_trainer.control_client import follow_metrics, request_checkpoint, request_stop, run_status
from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.recipe import load_recipe
from rstar_trainer.run_folder import RunFolder
from rstar_trainer.service import RunControl, TrainerServicer


def new_folder(path: Path) -> RunFolder:
    return RunFolder.create(load_recipe("quickstart", [f"run_dir={path}"]))


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[tuple[RunControl, MetricsLog]]:
    """A run folder with a trainer service at work, as the pipeline has it."""
    folder, control = new_folder(path), RunControl("quickstart-seed1", path)
    control.stage, control.step, control.stage_steps, control.global_step = "rl-1", 2, 4, 18
    with MetricsLog(path, tensorboard=False) as log, tempfile.TemporaryDirectory() as private:
        server = await start_server(
            ServeSettings(listen=f"unix:{private}/t.sock"),
            lambda server: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(TrainerServicer(control, log), server),
            [trainer_pb2.DESCRIPTOR],
        )
        folder.publish(server.listening, 1)
        try:
            yield control, log
        finally:
            await server.stop(0)


async def test_status_tells_stage_step_and_phase(tmp_path: Path) -> None:
    async with running(tmp_path) as (control, _):
        control.phase = "rollout"
        found = await asyncio.to_thread(run_status, tmp_path)
    assert found == {
        "run_id": "quickstart-seed1",
        "run_dir": str(tmp_path),
        "stage": "rl-1",
        "step": 2,
        "stage_steps": 4,
        "global_step": 18,
        "phase": "rollout",
        "stopping": False,
    }


async def test_stop_is_seen_by_the_run_and_in_its_status(tmp_path: Path) -> None:
    async with running(tmp_path) as (control, _):
        await asyncio.to_thread(request_stop, tmp_path)
        assert control.stop_requested.is_set()
        assert (await asyncio.to_thread(run_status, tmp_path))["stopping"] is True


async def test_a_checkpoint_is_asked_for_after_the_current_step(tmp_path: Path) -> None:
    async with running(tmp_path) as (control, _):
        assert await asyncio.to_thread(request_checkpoint, tmp_path) == 19
        assert control.checkpoint_requested.is_set()


async def test_metrics_come_as_json_lines_until_the_log_closes(tmp_path: Path) -> None:
    lines: list[str] = []
    async with running(tmp_path) as (_, log):
        log.log("rl", global_step=1, stage="rl-1", values={"reward": 0.5})
        following = asyncio.create_task(asyncio.to_thread(follow_metrics, tmp_path, lines.append))
        log.log("event", global_step=1, stage="rl-1", text="hello")
        log.close()
        await following
    assert [json.loads(line) for line in lines] == [
        {"global_step": 1, "stage": "rl-1", "kind": "rl", "values": {"reward": 0.5}},
        {"global_step": 1, "stage": "rl-1", "kind": "event", "text": "hello"},
    ]


def test_a_folder_without_a_run_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="folder of a run"):
        run_status(tmp_path)


def test_a_run_that_ended_is_an_input_error(tmp_path: Path) -> None:
    new_folder(tmp_path)
    with pytest.raises(UserInputError, match="a run that a trainer is at work in"):
        request_stop(tmp_path)


def test_a_trainer_that_was_killed_is_an_input_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    new_folder(tmp_path).publish(f"unix:{tmp_path}/gone.sock", 1)
    with pytest.raises(UserInputError, match="rstar-trainer resume"):
        run_status(tmp_path)
