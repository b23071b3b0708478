"""The whole sending side, over ranks too, against a real rollout service whose engine reads what it is told of."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from recording_service import RecordingEngine, recording_service

from rstar_model.digests import parameter_digest
from rstar_model.policy import Policy
from rstar_protos.errors import ServiceUnavailableError
from rstar_rollout.engines.base import EngineState, WeightSource, WeightUpdateError
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.vllm_shared import SharedMemoryUpdateInfo, _tensors
from rstar_rollout.scheduler.policies import KvBalanced
from rstar_trainer.backends.engine_transfer import own_address
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import OptimizerSettings
from rstar_trainer.weight_target import BACKENDS, TransferTarget

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

HOST = Path(__file__).parent / "hosts" / "zero_transfer.py"
CANARY = (1, 2, 3, 4, 5)


class ReadingEngine(RecordingEngine):
    """Takes digests of what arrives, and compares them as an engine does when an update is committed."""

    def __init__(self) -> None:
        super().__init__(BACKENDS["shared_memory"])
        self.held: dict[str, str] = {}
        self.manifest: dict[str, Any] = {}
        self.damaged: set[int] = set()
        """Versions of which one element of one parameter changes on the way."""

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Reads."""
        await super().begin_weight_update(version, source)
        told: dict[str, Any] = self.told[-1]
        if "update" in told:
            for name, tensor in _tensors(SharedMemoryUpdateInfo(**told["update"])):
                if name == "model.norm.weight" and version in self.damaged:
                    tensor.view(-1)[0] += 1.0
                self.held[name] = parameter_digest(tensor)
        self.manifest = told.get("manifest", self.manifest)

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Compares."""
        if self.held != self.manifest["digests"] or self.manifest["checksum"] != checksum:
            raise WeightUpdateError("parameters are not what was sent")
        await super().commit_weight_update(version, checksum)


class Served:
    """Two reading engines in a pool behind a service, in a thread of their own."""

    def __init__(self, folder: Path) -> None:
        self.engines = [ReadingEngine(), ReadingEngine()]
        self._folder, self._ready = folder, threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self.address = ""
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        fresh = iter(self.engines)
        pool = EnginePool([lambda: next(fresh)] * 2, KvBalanced(), slots=4)
        await pool.start()
        async with recording_service(pool, self._folder) as service:  # type: ignore[arg-type]  # any engine will do
            self.address = service.address
            self._ready.set()
            await self._end.wait()

    def close(self) -> None:
        """Ends the service."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def states(self) -> list[EngineState]:
        """Of the engines."""
        return [asyncio.run_coroutine_threadsafe(e.state(), self._loop).result() for e in self.engines]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("model")
    Policy.from_config(config, seed=3).save(folder)
    return folder


def learner(model: Path) -> TorchLearner:
    return TorchLearner(Policy.load(model, autocast=None), OptimizerSettings(), "bfloat16", CANARY)


def target(served: Served) -> TransferTarget:
    return TransferTarget("shared_memory", served.address, workers=2, seconds=60)


def expected(model: Path) -> dict[str, str]:
    """Digests of the model as engines hold it."""
    named = Policy.load(model, autocast=None).model.named_parameters()
    return {name: parameter_digest(value.detach().to(torch.bfloat16)) for name, value in named}


def test_every_engine_holds_what_the_learner_has(served: Served, model: Path) -> None:
    own = learner(model)
    manifest = own.send_weights(target(served), 1)
    assert [engine.held for engine in served.engines] == [expected(model)] * 2
    assert {(state.weight_version, state.checksum) for state in served.states()} == {(1, manifest.checksum)}
    with torch.no_grad():
        own.policy.model.get_input_embeddings().weight.mul_(1.5)
    again = own.send_weights(target(served), 2)
    assert again.checksum != manifest.checksum
    assert {(state.weight_version, state.checksum) for state in served.states()} == {(2, again.checksum)}
    assert again.canary is not None
    assert served.engines[0].manifest["canary"]["token_ids"] == list(CANARY)
    own.close()


def test_engines_are_met_once_and_again_when_their_service_is_another(served: Served, model: Path) -> None:
    own = learner(model)
    for version in (1, 2):
        own.send_weights(target(served), version)
    own.send_weights(replace(target(served), generation=1), 3)
    assert [step for told in served.engines[0].told for step in told if step in ("init", "manifest")] == [
        *("init", "manifest", "manifest"),
        *("init", "manifest"),
    ]
    own.close()


def test_damage_on_the_way_is_refused_and_the_next_update_puts_it_right(served: Served, model: Path) -> None:
    own = learner(model)
    for engine in served.engines:
        engine.damaged = {1}
    with pytest.raises(WeightUpdateError, match="not what was sent"):
        own.send_weights(target(served), 1)
    own.send_weights(target(served), 2)
    assert [state.weight_version for state in served.states()] == [2, 2]
    own.close()


def test_a_count_of_workers_that_is_wrong_is_refused(served: Served, model: Path) -> None:
    own = learner(model)
    with pytest.raises(WeightUpdateError, match="counts on 3 workers, the engines have 2"):
        own.send_weights(replace(target(served), workers=3), 1)
    own.send_weights(target(served), 1)
    own.close()


def test_a_service_that_is_away_is_told_as_that(tmp_path: Path, model: Path) -> None:
    own = learner(model)
    with pytest.raises(ServiceUnavailableError, match="weights did not reach the engines"):
        own.send_weights(TransferTarget("shared_memory", f"unix:{tmp_path}/nobody.sock", seconds=30), 1)


def test_ranks_with_sharded_parameters_send_what_a_single_process_sends(
    served: Served, model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("deepspeed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HOST), str(model), str(tmp_path), "3", served.address, "5"]
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=file, env={**shared, "RANK": str(rank)}))
    for engine in served.engines:
        engine.damaged = {6}
    try:
        codes = [process.wait(600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
    refused, *sent = json.loads((tmp_path / "sent.json").read_text())
    assert "counts on 7 workers" in refused
    assert "not what was sent" in sent[1]  # and the ranks go on together
    assert [sent[0]["digests"], sent[2]["digests"]] == [expected(model)] * 2
    assert [state.weight_version for state in served.states()] == [7, 7]


def test_the_address_of_this_machine_is_that_which_the_service_sees() -> None:
    assert own_address("unix:/run/rollout.sock") == "127.0.0.1"
    assert own_address("grpc://127.0.0.1:7103") == "127.0.0.1"
    assert own_address("grpcs://[::1]:7103") == "::1"
