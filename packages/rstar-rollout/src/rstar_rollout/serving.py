"""Putting a rollout service or a sampling service together from settings, and serving it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import grpc.aio

from rstar_model.chat_format import ChatFormat
from rstar_model.template_check import check_template
from rstar_model.tokenizer import load_tokenizer
from rstar_protos.errors import UserInputError, known_as
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import ClientSecurity, ServeSettings, open_channel, serve
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import Engine
from rstar_rollout.engines.pool import EngineFactory, EnginePool
from rstar_rollout.sampling_service import SamplingServicer
from rstar_rollout.scheduler.registry import make_policy
from rstar_rollout.service import RolloutServicer
from rstar_rollout.tools import ToolContext, check_tools, load_tools

__all__ = [
    "ENGINES",
    "EngineOptions",
    "RolloutOptions",
    "RolloutParts",
    "build_engine",
    "serve_rollout",
    "serve_sampling",
]

ENGINES = ("transformers", "vllm", "endpoint")


@dataclass(frozen=True)
class EngineOptions:
    """Which engine, and what it may use. Fields that an engine has no use for are ignored by it."""

    type: str = "transformers"
    dtype: str = "bfloat16"
    deterministic: bool = True
    threads: int | None = None
    max_batch: int = 96
    kv_gib: float | None = None
    """None: 3 for transformers, for vLLM see its settings."""
    device: str = "cpu"
    max_model_tokens: int | None = None
    tensor_parallel: int = 1
    engines: int = 1
    """How many, each with GPUs, KV cache and ``max_batch`` of its own."""
    scheduler: str = "kv_balanced"
    """Policy that gives rollouts to engines, of `rstar_rollout.scheduler.registry`."""
    endpoints: tuple[str, ...] = ()
    """Addresses of completion servers, for the type ``endpoint``: one engine each."""
    api_key: str | None = None
    sleep_level: int | None = None
    transfer_backend: str | None = None


@dataclass(frozen=True)
class RolloutOptions:
    """What a rollout service is made of."""

    model: Path
    engine: EngineOptions = field(default_factory=EngineOptions)
    chat_format: str = "rstar"
    sandbox: str | None = None
    """Endpoint of a SandboxService, None: there is none."""
    tools: tuple[str, ...] | None = None
    """Names that `rstar_rollout.tools.load_tools` knows; None: the Python tool where there is a sandbox."""
    sandbox_security: ClientSecurity = field(default_factory=ClientSecurity)
    tool_patience_seconds: float = 60.0
    tool_queue_seconds: float = 300.0
    max_tool_calls: int = 64


def build_engine(model: Path, options: EngineOptions) -> Engine:
    """The engine, not started; several, or one without fixed rounds of its own, as a pool under the scheduler.

    Its libraries are imported here and not before.

    Raises:
        UserInputError: unknown engine or scheduler, unusable settings, or an extra that is not installed.
    """
    if options.type not in ENGINES:
        raise UserInputError("--engine", options.type, "one of " + ", ".join(ENGINES))
    if options.engines < 1:
        raise UserInputError("--engines", options.engines, "a whole number from 1")
    policy = make_policy(options.scheduler)
    factories = {"transformers": _transformers, "vllm": _vllm, "endpoint": _endpoints}[options.type](model, options)
    if options.type == "transformers" and options.engines == 1:
        return factories[0]()
    return EnginePool(factories, policy, slots=options.max_batch)


def _transformers(model: Path, options: EngineOptions) -> list[EngineFactory]:
    from rstar_rollout.engines.transformers_engine import TransformersEngine, TransformersSettings

    settings = TransformersSettings(
        dtype=options.dtype,
        # Rounds are of one engine; several share the work as it comes.
        deterministic=options.deterministic and options.engines == 1,
        max_batch=options.max_batch,
        kv_gib=options.kv_gib if options.kv_gib is not None else TransformersSettings.kv_gib,
        threads=options.threads,
        device=options.device,
        max_model_tokens=options.max_model_tokens,
    )
    return [lambda: TransformersEngine(model, settings)] * options.engines


def _vllm(model: Path, options: EngineOptions) -> list[EngineFactory]:
    from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings

    settings = VllmSettings(
        dtype=options.dtype,
        max_sequences=options.max_batch,
        kv_gib=options.kv_gib,
        max_model_tokens=options.max_model_tokens,
        tensor_parallel=options.tensor_parallel,
        sleep_level=options.sleep_level,
        transfer_backend=options.transfer_backend,
    )
    if options.engines == 1:
        return [lambda: VllmEngine(model, settings)]
    size = options.tensor_parallel
    groups = [",".join(map(str, range(index * size, (index + 1) * size))) for index in range(options.engines)]
    # On a CPU there is nothing to divide but cores, which the system shares out better than fixed bounds.
    each = [replace(settings, devices=devices, cpu_threads="nobind") for devices in groups]
    return [partial(VllmEngine, model, chosen) for chosen in each]


def _endpoints(model: Path, options: EngineOptions) -> list[EngineFactory]:
    from rstar_rollout.engines.endpoint_engine import EndpointEngine

    if not options.endpoints:
        raise UserInputError("--endpoint", "", "the address of a completions API, such as http://127.0.0.1:8000/v1")
    return [partial(EndpointEngine, url, api_key=options.api_key) for url in options.endpoints]


class RolloutParts:
    """A started engine and the agent loop over it."""

    def __init__(self, options: RolloutOptions) -> None:
        self._options = options
        # Everything that can be wrong with the input is found before any weights are loaded.
        self._tokenizer = load_tokenizer(options.model)
        self._format = ChatFormat.load(options.chat_format)
        self._format.end_of_turn_id(self._tokenizer)
        check_template(self._format, self._tokenizer)
        default = () if options.sandbox is None else ("python",)
        self._tools = default if options.tools is None else options.tools
        check_tools(self._tools, has_sandbox=options.sandbox is not None)
        self.engine = build_engine(options.model, options.engine)
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> AgentLoop:
        """Load the weights, connect to the sandbox."""
        options = self._options
        if options.sandbox is not None:
            with known_as({"endpoint": "--sandbox"}):
                self._channel = open_channel(options.sandbox, options.sandbox_security)
        context = ToolContext(self._channel, options.tool_patience_seconds, options.tool_queue_seconds)
        executor = load_tools(self._tools, context) if self._tools else None
        await self.engine.start()
        # The scheduler chooses among those that wait, so there have to be some.
        waiting = 2 * options.engine.engines * options.engine.max_batch
        return AgentLoop(
            self.engine,
            self._format,
            self._tokenizer,
            executor,
            max_tool_calls=options.max_tool_calls,
            max_rollouts=max(1024, waiting),
        )

    async def stop(self) -> None:
        """Free everything."""
        await self.engine.shutdown()
        if self._channel is not None:
            await self._channel.close()


async def serve_rollout(options: RolloutOptions, settings: ServeSettings) -> None:
    """Serve a RolloutService until stopped.

    Raises:
        UserInputError: unusable options or address.
    """
    settings.address().check_free()  # before the weights are loaded
    parts = RolloutParts(options)

    async def register(server: grpc.aio.Server) -> None:
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(await parts.start()), server)

    try:
        await serve(settings, "rollout", register, [rollout_pb2.DESCRIPTOR])
    finally:
        await parts.stop()


async def serve_sampling(settings: ServeSettings) -> None:
    """Serve a SamplingService until stopped.

    Raises:
        UserInputError: unusable address.
    """

    def register(server: grpc.aio.Server) -> None:
        sampling_pb2_grpc.add_SamplingServiceServicer_to_server(SamplingServicer(), server)

    await serve(settings, "sampling", register, [sampling_pb2.DESCRIPTOR])
