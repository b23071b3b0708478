"""Weights on their way to a real rollout service whose engine keeps what it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from recording_service import RecordingEngine, RecordingService, recording_service

from rstar_model.weights import WeightManifest
from rstar_protos.errors import UserInputError
from rstar_rollout.client import RolloutClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_trainer.recipe import load_recipe
from rstar_trainer.rollouts import RolloutSource
from rstar_trainer.weight_delivery import FolderDelivery, TransferDelivery, check_engines
from rstar_trainer.weight_target import BACKENDS, TransferTarget

SENT = ["engine.type=vllm", "engine.transfer=shared_memory"]


class Thread:
    """A learner that notes what it is asked for, and runs where it is called."""

    def __init__(self) -> None:
        self.learner = self
        self.written: list[int] = []
        self.targets: list[TransferTarget] = []

    async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def write_weights(self, folder: Path, version: int) -> WeightManifest:
        folder.mkdir(exist_ok=True)
        self.written.append(version)
        return WeightManifest(version, f"sum {version}", folder, "float32")

    def send_weights(self, target: TransferTarget, version: int) -> WeightManifest:
        self.targets.append(target)
        return WeightManifest(version, f"sum {version}", Path(), "float32")


async def generate(source: RolloutSource) -> list[int]:
    """Versions of the rollouts of one problem."""
    found = source.generate_groups(
        [ProblemRequest("p", "p", "1+1?", 2)],
        SamplingSettings(seed=1),
        RolloutLimits(max_turns=1, max_response_tokens=8),
        ToolSettings(enabled=False),
    )
    return [
        version for trajectory in [t async for t in found] for version in trajectory.ledger.weight_versions if version
    ]


def folder_source(service: RecordingService, folder: Path, *, sleeping: bool = False) -> tuple[RolloutSource, Thread]:
    thread = Thread()
    delivery = FolderDelivery(thread, RolloutClient(service.rollout), folder)  # type: ignore[arg-type]
    return RolloutSource(service, delivery, sleeping=sleeping), thread  # type: ignore[arg-type]


async def test_a_folder_is_written_once_for_each_version(tmp_path: Path) -> None:
    async with recording_service(RecordingEngine(), tmp_path) as service:
        source, thread = folder_source(service, tmp_path / "weights")
        assert await source.use_weights(1) == "sum 1"
        await source.use_weights(1)
        service.rollout_generation += 1  # another process, with the weights that it began with
        await generate(source)
        await source.use_weights(2)
    assert thread.written == [1, 2]
    assert service.engine.calls[:4] == ["begin 1", "commit 1", "begin 1", "commit 1"]
    assert service.engine.calls[-2:] == ["begin 2", "commit 2"]


async def test_a_refused_update_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar_trainer.rollouts._RETRY_SECONDS", 0.0)
    async with recording_service(RecordingEngine(refusals=2), tmp_path) as service:
        source, _ = folder_source(service, tmp_path / "weights")
        await source.use_weights(3)
    assert service.engine.calls == ["begin 3"] * 3 + ["commit 3"]


async def test_engines_sleep_while_the_learner_computes_and_get_the_weights_before_they_wake(tmp_path: Path) -> None:
    async with recording_service(RecordingEngine(), tmp_path) as service:
        source, _ = folder_source(service, tmp_path / "weights", sleeping=True)
        await source.use_weights(1)
        await generate(source)
        await source.rest()
        await source.rest()  # a second update in a row
        await source.use_weights(2)
        await generate(source)
    assert service.engine.calls == [
        *("begin 1", "commit 1", "generate", "generate"),
        "sleep",
        *("begin 2", "commit 2", "wake", "generate", "generate"),
    ]


async def test_weights_are_sent_again_after_a_sleep_without_an_update(tmp_path: Path) -> None:
    """An engine may have dropped them."""
    async with recording_service(RecordingEngine(), tmp_path) as service:
        source, _ = folder_source(service, tmp_path / "weights", sleeping=True)
        await source.use_weights(1)
        await source.rest()
        await source.use_weights(1)
    assert service.engine.calls == ["begin 1", "commit 1", "sleep", "begin 1", "commit 1", "wake"]


async def test_without_the_option_engines_stay_awake(tmp_path: Path) -> None:
    async with recording_service(RecordingEngine(), tmp_path) as service:
        source, _ = folder_source(service, tmp_path / "weights")
        await source.use_weights(1)
        await source.rest()
        await source.use_weights(2)
    assert "sleep" not in service.engine.calls


async def test_the_learner_is_told_whom_to_send_to(tmp_path: Path) -> None:
    thread, recipe = Thread(), load_recipe("quickstart", SENT)
    async with recording_service(RecordingEngine(BACKENDS["shared_memory"]), tmp_path) as service:
        client = RolloutClient(service.rollout)
        delivery = TransferDelivery(thread, client, recipe, service.address, None)  # type: ignore[arg-type]
        assert await delivery.deliver(4, 2) == "sum 4"
    expected = TransferTarget("shared_memory", service.address, workers=1, generation=2, seconds=1800.0)
    assert thread.targets == [expected]


@pytest.mark.parametrize(
    ("settings", "backend", "said"),
    [
        (SENT, "", r"engine\.transfer: 'shared_memory'.*--transfer-backend rstar_shared_memory.*files alone"),
        (SENT, "nccl", r"engine\.transfer: 'shared_memory'.*takes nccl"),
    ],
)
async def test_a_service_started_for_something_else_is_refused(
    tmp_path: Path, settings: list[str], backend: str, said: str
) -> None:
    async with recording_service(RecordingEngine(backend), tmp_path) as service:
        with pytest.raises(UserInputError, match=said):
            await check_engines(load_recipe("quickstart", settings), RolloutClient(service.rollout))


async def test_a_service_that_fits_is_not_refused(tmp_path: Path) -> None:
    async with recording_service(RecordingEngine(BACKENDS["shared_memory"]), tmp_path) as service:
        client = RolloutClient(service.rollout)
        await check_engines(load_recipe(), client)
        await check_engines(load_recipe("quickstart", [*SENT, "engine.sleep_level=1"]), client)
