"""The command `rstar-rollout`: serve, serve-sampling, generate, chat."""

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
OptionalStr = Optional[str]  # noqa: UP045

Listen = Annotated[str, typer.Option(help="unix:/path or host:port; port 0: any free one.")]
Tls = Annotated[OptionalPath, typer.Option(help="PEM file.")]
TokenFile = Annotated[OptionalPath, typer.Option(help="File whose first line is the bearer token.")]
MetricsPort = Annotated[OptionalInt, typer.Option(help="Loopback port for Prometheus.")]
WatchParent = Annotated[bool, typer.Option("--watch-parent", help="End when standard input ends.")]
Model = Annotated[Path, typer.Option(help="Hugging Face model folder.")]
EngineType = Annotated[str, typer.Option(help="transformers (embedded default) or vllm.")]
Sandbox = Annotated[
    str, typer.Option(help="SandboxService endpoint; embedded: start one; none: no tools.")
]
Format = Annotated[str, typer.Option(help="Chat format: a name or a .toml file.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Deterministic = Annotated[
    bool, typer.Option("--deterministic/--no-deterministic", help="Lockstep rounds, bit-equal from run to run.")
]
Threads = Annotated[OptionalInt, typer.Option(help="CPU threads of the model; none: torch's choice.")]
MaxBatch = Annotated[int, typer.Option(help="Sequences generated at once.")]
KvGib = Annotated[float, typer.Option(help="Memory for the KV cache of running sequences, GiB.")]
Device = Annotated[str, typer.Option(help="torch device of the transformers engine.")]


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
    sandbox_token_file: TokenFile = None,
    sandbox_ca: Tls = None,
    sandbox_cert: Tls = None,
    sandbox_key: Tls = None,
    chat_format: Format = "rstar",
    dtype: Dtype = "bfloat16",
    deterministic: Deterministic = True,
    threads: Threads = None,
    max_batch: MaxBatch = 96,
    kv_gib: KvGib = 3.0,
    device: Device = "cpu",
    max_model_tokens: Annotated[OptionalInt, typer.Option(help="vLLM: longest sequence.")] = None,
    tensor_parallel: Annotated[int, typer.Option(help="vLLM: GPUs per engine.")] = 1,
    max_tool_calls: Annotated[int, typer.Option(help="Tool calls in flight at once.")] = 64,
    tool_patience: Annotated[
        float, typer.Option(help="Seconds to go on trying while the sandbox is away.")
    ] = 60.0,
) -> None:
    """Serve RolloutService over gRPC until stopped."""
    from rstar_rollout.serving import EngineOptions, RolloutOptions, serve_rollout

    settings = serve_settings(
        listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent
    )
    security = ClientSecurity(
        sandbox_ca, sandbox_cert, sandbox_key, read_token(sandbox_token_file, "--sandbox-token-file")
    )
    options = RolloutOptions(
        model=model,
        engine=EngineOptions(
            engine, dtype, deterministic, threads, max_batch, kv_gib, device, max_model_tokens, tensor_parallel
        ),
        chat_format=chat_format,
        sandbox=None if sandbox in ("", "none") else sandbox,
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

    settings = serve_settings(
        listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent
    )
    asyncio.run(serve_service(settings))


def main() -> None:
    """Entry point."""
    run(app)
