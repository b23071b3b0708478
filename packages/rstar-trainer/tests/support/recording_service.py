"""A real RolloutService over a scripted engine that keeps the order of what it is asked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import tokenizers

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import ServeSettings, open_channel, start_server
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import (
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.service import RolloutServicer

__all__ = ["RecordingEngine", "RecordingService", "recording_service"]

FORMAT = ChatFormat.load("rstar")


class RecordingEngine(ScriptedEngine):
    """Ends every turn at once, and keeps calls in order.

    Args:
        transfer_backend: that updates may come by.
        refusals: how many updates to refuse first.
    """

    def __init__(self, transfer_backend: str = "", refusals: int = 0) -> None:
        super().__init__(lambda _: [], deterministic=False, transfer_backend=transfer_backend)
        self.calls: list[str] = []
        self.told: list[dict[str, object]] = []
        self._refusals = refusals

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """As the engine it is."""
        self.calls.append("generate")
        return await super().generate(request, on_tokens)

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """As the engine it is."""
        self.calls.append(f"begin {version}")
        self.told.append(json.loads(source.settings_json or "{}"))
        if self._refusals:
            self._refusals -= 1
            raise WeightUpdateError("not now")
        await super().begin_weight_update(version, source)

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """As the engine it is."""
        self.calls.append(f"commit {version}")
        await super().commit_weight_update(version, checksum)

    async def sleep(self) -> None:
        """As the engine it is."""
        self.calls.append("sleep")
        await super().sleep()

    async def wake(self) -> None:
        """As the engine it is."""
        self.calls.append("wake")
        await super().wake()


@dataclass
class RecordingService:
    """What a trainer sees of its services."""

    engine: RecordingEngine
    address: str
    rollout: grpc.aio.Channel
    rollout_generation: int = 0

    def channel(self, name: str) -> grpc.aio.Channel:
        """The only one there is."""
        assert name == "rollout"
        return self.rollout


@contextlib.asynccontextmanager
async def recording_service(engine: RecordingEngine, folder: Path) -> AsyncIterator[RecordingService]:
    """Serves an engine on a socket in a folder."""
    loop = AgentLoop(engine, FORMAT, _byte_tokenizer(), None)
    server = await start_server(
        ServeSettings(listen=f"unix:{folder}/rollout.sock"),
        lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server),
        [rollout_pb2.DESCRIPTOR],
    )
    channel = open_channel(server.listening)
    try:
        yield RecordingService(engine, server.listening, channel)
    finally:
        await channel.close()
        await server.stop(1.0)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(alphabet)}
    built = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = tokenizers.decoders.ByteLevel()
    built.add_special_tokens(["<|im_start|>", FORMAT.end_of_turn])
    return Tokenizer(built.to_str(), eos_tokens=[FORMAT.end_of_turn])
