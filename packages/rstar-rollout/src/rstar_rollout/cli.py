"""The command `rstar-rollout`: serve, serve-sampling, generate, chat, simulate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rstar_protos.cli import run_typer
from rstar_protos.service import ClientSecurity, read_token
from rstar_rollout.cli_options import (
    OPTION_NAMES,
    BatchOptions,
    ModelOptions,
    OptionalFloat,
    OptionalInt,
    OptionalInts,
    OptionalPath,
    OptionalStrings,
    SamplingOptions,
    ServiceOptions,
    with_option_groups,
)
from rstar_rollout.limits import RolloutLimits, ToolSettings

if TYPE_CHECKING:
    from rstar_rollout.serving import EngineOptions, RolloutOptions

__all__ = ["app", "main"]

app = typer.Typer(
    name="rstar-rollout",
    help="Makes agentic trajectories: a policy that reasons, calls tools and goes on, exact to the token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Tls = Annotated[OptionalPath, typer.Option(help="PEM file.")]
Sandbox = Annotated[str, typer.Option(help="SandboxService endpoint; embedded: start one; none: no Python tool.")]
_CHAT_SAMPLING = SamplingOptions(temperature=0.6)


@app.command()
@with_option_groups
def serve(
    model: ModelOptions,
    batch: BatchOptions,
    service: ServiceOptions = ServiceOptions(listen="127.0.0.1:7103"),  # noqa: B008  frozen
    sandbox: Annotated[str, typer.Option(help="SandboxService endpoint, or none.")] = "none",
    sandbox_token_file: Annotated[OptionalPath, typer.Option(help="As --token-file, for the sandbox.")] = None,
    sandbox_ca: Tls = None,
    sandbox_cert: Tls = None,
    sandbox_key: Tls = None,
    max_model_tokens: Annotated[OptionalInt, typer.Option(help="Longest sequence; none: the model's own.")] = None,
    tensor_parallel: Annotated[int, typer.Option(help="vLLM: GPUs per engine.")] = 1,
    sleep_level: Annotated[
        OptionalInt, typer.Option(help="vLLM: 1, sleep moves weights to the host; 2, drops them; none: never sleeps.")
    ] = None,
    transfer_backend: Annotated[
        Optional[str],  # noqa: UP045  typer on Python 3.10 reads it, not X | None, in strings
        typer.Option(help="vLLM's weight transfer backend, such as nccl; none: files."),
    ] = None,
    max_tool_calls: Annotated[int, typer.Option(help="Tool calls in flight at once.")] = 64,
    tool_patience: Annotated[float, typer.Option(help="Seconds to go on trying while the sandbox is away.")] = 60.0,
) -> None:
    """Serve RolloutService over gRPC until stopped."""
    from rstar_rollout.serving import RolloutOptions, serve_rollout

    settings = service.settings()
    security = ClientSecurity(
        sandbox_ca, sandbox_cert, sandbox_key, read_token(sandbox_token_file, "--sandbox-token-file")
    )
    options = RolloutOptions(
        model=model.model,
        engine=model.engine_options(
            **asdict(batch),
            max_model_tokens=max_model_tokens,
            tensor_parallel=tensor_parallel,
            sleep_level=sleep_level,
            transfer_backend=transfer_backend,
        ),
        chat_format=model.chat_format,
        sandbox=None if sandbox in ("", "none") else sandbox,
        tools=model.tools,
        sandbox_security=security,
        tool_patience_seconds=tool_patience,
        max_tool_calls=max_tool_calls,
    )
    asyncio.run(serve_rollout(options, settings))


@app.command(name="serve-sampling")
@with_option_groups
def serve_sampling(
    service: ServiceOptions = ServiceOptions(listen="127.0.0.1:7104"),  # noqa: B008  frozen
) -> None:
    """Serve SamplingService (Resample-on-Correct) over gRPC until stopped."""
    from rstar_rollout.serving import serve_sampling as serve_service

    asyncio.run(serve_service(service.settings()))


@app.command()
@with_option_groups
def generate(
    model: ModelOptions,
    problems: Annotated[Path, typer.Option(help='JSONL, {"problem": ..., "problem_id": ...} a line.')],
    out: Annotated[Path, typer.Option(help="JSONL of trajectories to write.")],
    sampling: SamplingOptions,
    batch: BatchOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output file.")] = False,
    samples: Annotated[int, typer.Option(help="Rollouts per problem.")] = 1,
    max_response_tokens: Annotated[int, typer.Option(help="Tokens after the prompt.")] = 8192,
    max_tool_output_tokens: Annotated[int, typer.Option(help="Of one tool response; 0: no limit.")] = 1024,
    sandbox: Sandbox = "embedded",
) -> None:
    """Make trajectories for a file of problems."""
    from rstar_rollout.generate import GenerateJob, read_problems
    from rstar_rollout.generate import generate as run_job

    job = GenerateJob(
        problems=problems,
        out=out,
        samples=samples,
        sampling=sampling.settings(),
        limits=RolloutLimits(sampling.max_turns, max_response_tokens, max_tool_output_tokens=max_tool_output_tokens),
        tools=ToolSettings(wall_seconds=sampling.tool_seconds),  # where there are none, none are offered
        overwrite=overwrite,
    )
    read_problems(problems, samples)  # a bad file is refused before a sandbox is started
    with _with_sandbox(model, sandbox, model.engine_options(**asdict(batch))) as options:
        asyncio.run(run_job(options, job))


@app.command()
@with_option_groups
def chat(
    model: ModelOptions,
    sampling: SamplingOptions = _CHAT_SAMPLING,
    max_new_tokens: Annotated[int, typer.Option(help="Of one turn.")] = 1024,
    sandbox: Sandbox = "embedded",
) -> None:
    """Talk to a policy; its tool calls and their results are shown. Reads lines when input is piped."""
    from rstar_rollout.chat import chat as run_chat

    settings, tools = sampling.settings(), ToolSettings(wall_seconds=sampling.tool_seconds)
    with _with_sandbox(model, sandbox, model.engine_options(max_batch=1), slots=2) as options:
        asyncio.run(run_chat(options, settings, tools, max_turns=sampling.max_turns, max_new_tokens=max_new_tokens))


@contextlib.contextmanager
def _with_sandbox(model: ModelOptions, sandbox: str, engine: EngineOptions, slots: int = 0) -> Iterator[RolloutOptions]:
    """What a command without a service of its own is made of; a sandbox that it starts lives as long as the context."""
    from rstar_rollout.embedded_sandbox import sandbox_endpoint
    from rstar_rollout.serving import RolloutOptions
    from rstar_rollout.tools import check_tools

    check_tools(model.tools or (), has_sandbox=sandbox not in ("", "none"))  # before a sandbox is started
    with sandbox_endpoint(sandbox, slots) as address:
        yield RolloutOptions(model.model, engine, model.chat_format, address, model.tools)


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
    run_typer(app, OPTION_NAMES)
