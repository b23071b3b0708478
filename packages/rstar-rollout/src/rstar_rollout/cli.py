"""The command `rstar-rollout`: serve, serve-sampling, generate, chat, simulate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Optional

import typer

from rstar_protos.cli import run
from rstar_protos.service import ClientSecurity, read_token, serve_settings

__all__ = ["app", "main"]

app = typer.Typer(
    name="rstar-rollout",
    help="Makes agentic trajectories: a policy that reasons, calls tools and goes on, exact to the token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

# typer on Python 3.10 reads Optional, not X | None, in annotations that are strings.
OptionalPath = Optional[Path]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalStrings = Optional[list[str]]  # noqa: UP045
OptionalInts = Optional[list[int]]  # noqa: UP045

Listen = Annotated[str, typer.Option(help="unix:/path or host:port; port 0: any free one.")]
Tls = Annotated[OptionalPath, typer.Option(help="PEM file.")]
TokenFile = Annotated[OptionalPath, typer.Option(help="File whose first line is the bearer token.")]
MetricsPort = Annotated[OptionalInt, typer.Option(help="Loopback port for Prometheus.")]
WatchParent = Annotated[bool, typer.Option("--watch-parent", help="End when standard input ends.")]
Model = Annotated[Path, typer.Option(help="Hugging Face model folder.")]
EngineType = Annotated[str, typer.Option(help="transformers (embedded default), vllm, or endpoint.")]
Engines = Annotated[int, typer.Option(help="Engines, each with accelerators and KV cache of its own.")]
Scheduler = Annotated[
    str,
    typer.Option(
        help="Who gets which engine: kv_balanced (worst case), kv_learned (lengths seen), least_in_flight or static."
    ),
]
Endpoint = Annotated[
    OptionalStrings, typer.Option(help="Completions API for --engine endpoint; may be repeated, one engine each.")
]
EndpointKeyFile = Annotated[
    OptionalPath, typer.Option(help="File whose first line is the API key that endpoints are sent.")
]
Sandbox = Annotated[str, typer.Option(help="SandboxService endpoint; embedded: start one; none: no tools.")]
Format = Annotated[str, typer.Option(help="Chat format: a name or a .toml file.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic/--no-deterministic", help="Lockstep rounds, bit-equal from run to run.")
]
Threads = Annotated[OptionalInt, typer.Option(help="CPU threads of the model; none: torch's choice.")]
MaxBatch = Annotated[int, typer.Option(help="Sequences generated at once.")]
KvGib = Annotated[
    OptionalFloat, typer.Option(help="Memory for the KV cache of running sequences, GiB; none: 3, or vLLM's choice.")
]
Device = Annotated[str, typer.Option(help="torch device of the transformers engine.")]

Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0: greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling; 1: off.")]
TopK = Annotated[int, typer.Option(help="Top-k sampling; 0: off.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]
MaxTurns = Annotated[int, typer.Option(help="Assistant turns of a rollout.")]
ToolSeconds = Annotated[float, typer.Option(help="Wall clock limit of a tool call, seconds.")]


@app.command()
def serve(
    model: Model,
    listen: Listen = "127.0.0.1:7103",
    tls_cert: Tls = None,
    tls_key: Tls = None,
    tls_client_ca: Tls = None,
    token_file: TokenFile = None,
    metrics_port: MetricsPort = None,
    watch_parent: WatchParent = False,
    engine: EngineType = "transformers",
    sandbox: Annotated[str, typer.Option(help="SandboxService endpoint, or none.")] = "none",
    tool: Annotated[
        OptionalStrings, typer.Option(help="A registered tool, may be repeated; none: python where there is a sandbox.")
    ] = None,
    sandbox_token_file: TokenFile = None,
    sandbox_ca: Tls = None,
    sandbox_cert: Tls = None,
    sandbox_key: Tls = None,
    chat_format: Format = "rstar",
    dtype: Dtype = "bfloat16",
    deterministic: Deterministic = True,
    threads: Threads = None,
    max_batch: MaxBatch = 96,
    kv_gib: KvGib = None,
    device: Device = "cpu",
    max_model_tokens: Annotated[OptionalInt, typer.Option(help="Longest sequence; none: the model's own.")] = None,
    tensor_parallel: Annotated[int, typer.Option(help="vLLM: GPUs per engine.")] = 1,
    engines: Engines = 1,
    scheduler: Scheduler = "kv_balanced",
    endpoint: Endpoint = None,
    endpoint_key_file: EndpointKeyFile = None,
    sleep_level: Annotated[
        OptionalInt, typer.Option(help="vLLM: 1, sleep moves weights to the host; 2, drops them; none: never sleeps.")
    ] = None,
    transfer_backend: Annotated[
        Optional[str],  # noqa: UP045  typer on Python 3.10, as above
        typer.Option(help="vLLM's weight transfer backend, such as nccl; none: files."),
    ] = None,
    max_tool_calls: Annotated[int, typer.Option(help="Tool calls in flight at once.")] = 64,
    tool_patience: Annotated[float, typer.Option(help="Seconds to go on trying while the sandbox is away.")] = 60.0,
) -> None:
    """Serve RolloutService over gRPC until stopped."""
    from rstar_rollout.serving import EngineOptions, RolloutOptions, serve_rollout

    settings = serve_settings(listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent)
    security = ClientSecurity(
        sandbox_ca, sandbox_cert, sandbox_key, read_token(sandbox_token_file, "--sandbox-token-file")
    )
    options = RolloutOptions(
        model=model,
        engine=EngineOptions(
            engine,
            dtype,
            deterministic,
            threads,
            max_batch,
            kv_gib,
            device,
            max_model_tokens,
            tensor_parallel,
            engines,
            scheduler,
            tuple(endpoint or ()),
            read_token(endpoint_key_file, "--endpoint-key-file"),
            sleep_level,
            transfer_backend,
        ),
        chat_format=chat_format,
        sandbox=None if sandbox in ("", "none") else sandbox,
        tools=tuple(tool) if tool else None,
        sandbox_security=security,
        tool_patience_seconds=tool_patience,
        max_tool_calls=max_tool_calls,
    )
    asyncio.run(serve_rollout(options, settings))


@app.command(name="serve-sampling")
def serve_sampling(
    listen: Listen = "127.0.0.1:7104",
    tls_cert: Tls = None,
    tls_key: Tls = None,
    tls_client_ca: Tls = None,
    token_file: TokenFile = None,
    metrics_port: MetricsPort = None,
    watch_parent: WatchParent = False,
) -> None:
    """Serve SamplingService (Resample-on-Correct) over gRPC until stopped."""
    from rstar_rollout.serving import serve_sampling as serve_service

    settings = serve_settings(listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent)
    asyncio.run(serve_service(settings))


@app.command()
def generate(
    model: Model,
    problems: Annotated[Path, typer.Option(help='JSONL, {"problem": ..., "problem_id": ...} a line.')],
    out: Annotated[Path, typer.Option(help="JSONL of trajectories to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output file.")] = False,
    samples: Annotated[int, typer.Option(help="Rollouts per problem.")] = 1,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    max_turns: MaxTurns = 10,
    max_response_tokens: Annotated[int, typer.Option(help="Tokens after the prompt.")] = 8192,
    max_tool_output_tokens: Annotated[int, typer.Option(help="Of one tool response; 0: no limit.")] = 1024,
    tool_seconds: ToolSeconds = 5.0,
    sandbox: Sandbox = "embedded",
    engine: EngineType = "transformers",
    chat_format: Format = "rstar",
    dtype: Dtype = "bfloat16",
    deterministic: Deterministic = True,
    threads: Threads = None,
    max_batch: MaxBatch = 96,
    kv_gib: KvGib = None,
    device: Device = "cpu",
    engines: Engines = 1,
    scheduler: Scheduler = "kv_balanced",
    endpoint: Endpoint = None,
    endpoint_key_file: EndpointKeyFile = None,
) -> None:
    """Make trajectories for a file of problems."""
    from rstar_rollout.embedded_sandbox import sandbox_endpoint
    from rstar_rollout.generate import GenerateJob, read_problems
    from rstar_rollout.generate import generate as run_job
    from rstar_rollout.limits import RolloutLimits, SamplingSettings, ToolSettings
    from rstar_rollout.serving import EngineOptions, RolloutOptions

    job = GenerateJob(
        problems=problems,
        out=out,
        samples=samples,
        sampling=SamplingSettings(temperature, top_p, top_k, seed),
        limits=RolloutLimits(max_turns, max_response_tokens, max_tool_output_tokens=max_tool_output_tokens),
        tools=ToolSettings(sandbox != "none", tool_seconds),
        overwrite=overwrite,
    )
    read_problems(problems, samples)  # a bad file is refused before a sandbox is started
    options = EngineOptions(
        engine,
        dtype,
        deterministic,
        threads,
        max_batch,
        kv_gib,
        device,
        engines=engines,
        scheduler=scheduler,
        endpoints=tuple(endpoint or ()),
        api_key=read_token(endpoint_key_file, "--endpoint-key-file"),
    )
    with sandbox_endpoint(sandbox) as sandbox_address:
        asyncio.run(run_job(RolloutOptions(model, options, chat_format, sandbox_address), job))


@app.command()
def chat(
    model: Model,
    temperature: Temperature = 0.6,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = 0,
    max_turns: MaxTurns = 10,
    max_new_tokens: Annotated[int, typer.Option(help="Of one turn.")] = 1024,
    tool_seconds: ToolSeconds = 5.0,
    sandbox: Sandbox = "embedded",
    engine: EngineType = "transformers",
    chat_format: Format = "rstar",
    dtype: Dtype = "bfloat16",
    threads: Threads = None,
    device: Device = "cpu",
    endpoint: Endpoint = None,
    endpoint_key_file: EndpointKeyFile = None,
) -> None:
    """Talk to a policy; its tool calls and their results are shown. Reads lines when input is piped."""
    from rstar_rollout.chat import chat as run_chat
    from rstar_rollout.embedded_sandbox import sandbox_endpoint
    from rstar_rollout.limits import SamplingSettings, ToolSettings
    from rstar_rollout.serving import EngineOptions, RolloutOptions

    sampling = SamplingSettings(temperature, top_p, top_k, seed)
    options = EngineOptions(
        type=engine,
        dtype=dtype,
        threads=threads,
        max_batch=1,
        device=device,
        endpoints=tuple(endpoint or ()),
        api_key=read_token(endpoint_key_file, "--endpoint-key-file"),
    )
    with sandbox_endpoint(sandbox, slots=2) as sandbox_address:
        asyncio.run(
            run_chat(
                RolloutOptions(model, options, chat_format, sandbox_address),
                sampling,
                ToolSettings(sandbox_address is not None, tool_seconds),
                max_turns=max_turns,
                max_new_tokens=max_new_tokens,
            )
        )


@app.command()
def simulate(
    preset: Annotated[str, typer.Option(help="paper-64gpu: the paper's step on 64 GPUs.")] = "paper-64gpu",
    layout: Annotated[
        OptionalStrings, typer.Option(help="tp1 or tp2, may be repeated; none: all of the preset.")
    ] = None,
    limit: Annotated[
        OptionalInts, typer.Option(help="Response tokens, may be repeated; none: all of the preset.")
    ] = None,
    policy: Annotated[OptionalStrings, typer.Option(help="May be repeated; none: all.")] = None,
    trajectories: Annotated[
        OptionalPath, typer.Option(help="JSONL of recorded trajectories to fit lengths, turns and latencies to.")
    ] = None,
    kv_share: Annotated[OptionalFloat, typer.Option(help="Share of the preset's KV cache that engines have.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the lengths, turns and latencies.")] = 1,
    json: Annotated[OptionalPath, typer.Option(help="JSON file to write.")] = None,
    plot: Annotated[OptionalPath, typer.Option(help="PNG to write; needs matplotlib.")] = None,
) -> None:
    """Run the scheduling policies over one rollout step of a modelled cluster."""
    from rstar_rollout.simulator.command import SimulateJob, run_job
    from rstar_rollout.simulator.report import POLICY_NAMES

    run_job(
        SimulateJob(
            preset=preset,
            layouts=tuple(layout or ()),
            limits=tuple(limit or ()),
            policies=tuple(policy or POLICY_NAMES),
            seed=seed,
            kv_share=kv_share,
            trajectories=trajectories,
            json=json,
            plot=plot,
        )
    )


def main() -> None:
    """Entry point."""
    run(app)
