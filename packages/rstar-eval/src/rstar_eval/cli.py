"""The command line: `rstar-eval run` evaluates a policy, `rstar-eval report` shows stored evaluations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rstar_eval.description import Description, load_report, merge_problems
from rstar_eval.plot import plot_reports
from rstar_eval.problems import load_problems
from rstar_eval.report import Report
from rstar_eval.run import EvaluationRun
from rstar_eval.services import NO_SANDBOX, ServiceChoice
from rstar_eval.settings import EvalSettings
from rstar_eval.table import report_table, tag_table, warnings
from rstar_protos.cli import run_typer
from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_protos.service import EMBEDDED, ClientSecurity, read_token

__all__ = ["main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Benchmarks, statistics and reports of agentic reasoners.",
)

_DEFAULTS = EvalSettings()
# Settings by the options that set them, for errors.
_OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in ("problems", "samples", "temperature", "top_p", "max_turns")},
    **{name: f"--{name.replace('_', '-')}" for name in ("max_response_tokens", "seed", "limit", "chat_format")},
    "tool_wall_seconds": "--tool-seconds",
    "model": "--model",
    "model folder": "--model",
    "evaluation": "FOLDERS",
}


@app.command()
def run(
    problems: Annotated[list[Path], typer.Option(help="JSONL or parquet file; may be given several times.")],
    out: Annotated[Path, typer.Option(help="Folder of the evaluation; an unfinished one is continued.")],
    model: Annotated[str | None, typer.Option(help="Hugging Face folder of the policy, or smollm2-135m.")] = None,
    name: Annotated[str, typer.Option(help="Title; default: the name of the folder.")] = "",
    samples: Annotated[int, typer.Option(help="Samples per problem.")] = _DEFAULTS.samples,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = _DEFAULTS.temperature,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = _DEFAULTS.top_p,
    max_turns: Annotated[int, typer.Option(help="Assistant turns of a rollout.")] = _DEFAULTS.max_turns,
    max_response_tokens: Annotated[
        int, typer.Option(help="Tokens after the prompt, tool results included.")
    ] = _DEFAULTS.max_response_tokens,
    tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Whether the policy may call tools.")] = True,
    tool_seconds: Annotated[
        float,
        typer.Option(
            help="Limit of one tool call; 0: the sandbox's, which is also the most it gives (600 by default)."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling and bootstrap.")] = _DEFAULTS.seed,
    limit: Annotated[int | None, typer.Option(help="Read the first N problems of each file only.")] = None,
    tag_field: Annotated[list[str] | None, typer.Option(help="Column to report apart; may be repeated.")] = None,
    sandbox: Annotated[str, typer.Option(help="Endpoint of a sandbox service.")] = EMBEDDED,
    reward: Annotated[str, typer.Option(help="Endpoint of a reward service.")] = EMBEDDED,
    rollout: Annotated[str, typer.Option(help="Endpoint of a rollout service, instead of --model.")] = EMBEDDED,
    ca: Annotated[Path | None, typer.Option(help="CA certificate of the services given by endpoint.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Own certificate for them.")] = None,
    key: Annotated[Path | None, typer.Option(help="Own private key for them.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token for them.")] = None,
    engine: Annotated[str, typer.Option(help="Engine of an embedded rollout service.")] = "transformers",
    dtype: Annotated[str, typer.Option(help="Its data type.")] = "bfloat16",
    chat_format: Annotated[str, typer.Option(help="Its chat format.")] = "rstar",
    max_batch: Annotated[int, typer.Option(help="Rollouts it generates at once.")] = 96,
    threads: Annotated[int, typer.Option(help="Its CPU threads; 0: torch's choice.")] = 0,
) -> None:
    """Evaluate a policy on problems: pass@1 with a 95 % interval, by tag, every sample kept."""
    settings = EvalSettings(
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        max_turns=max_turns,
        max_response_tokens=max_response_tokens,
        tools_enabled=tools,
        tool_wall_seconds=tool_seconds,
        seed=seed,
    )
    if (model is None) == (rollout == EMBEDDED):
        raise UserInputError.message("give --model for an embedded policy or --rollout for a running one, not both")
    asked = merge_problems([load_problems(file, tag_fields=tag_field or (), limit=limit) for file in problems])
    security = ClientSecurity(ca, cert, key, read_token(token_file))
    arguments: tuple[str, ...] = ()
    if model is not None:
        arguments = (
            *("--model", str(_model_folder(model)), "--engine", engine, "--dtype", dtype),
            *("--chat-format", chat_format, "--max-batch", str(max_batch)),
            *(("--threads", str(threads)) if threads else ()),
        )
    evaluation = EvaluationRun(
        Description(
            name or out.resolve().name, model or rollout, settings, tuple(asked), tuple(str(file) for file in problems)
        ),
        ServiceChoice(sandbox if tools else NO_SANDBOX, reward, rollout, security, token_file, arguments),
        out,
    )
    report = asyncio.run(evaluation.run(Console(stderr=True)))
    _show([report], Console(), tags=True)
    if not report.complete:
        raise InfrastructureError(f"{report.missing} samples are missing; the same command makes them")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders written by `rstar-eval run`.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per evaluation, one a line.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the scores.")] = None,
) -> None:
    """Show stored evaluations, computed again from their samples."""
    reports = [load_report(folder) for folder in folders]
    if plot is not None:
        plot_reports(reports, plot)
    if json:
        for item in reports:
            print(item.to_json(indent=None))
    else:
        _show(reports, Console(), tags=len(reports) == 1)


def main() -> None:
    """Entry point of `rstar-eval`."""
    run_typer(app, _OPTIONS)


def _show(reports: list[Report], console: Console, *, tags: bool) -> None:
    console.print(report_table(reports))
    if tags and reports[0].by_tag:
        console.print(tag_table(reports[0]))
    for item in reports:
        for warning in warnings(item):
            console.print(f"{item.name}: {warning}", style="yellow", highlight=False, markup=False)


def _model_folder(model: str) -> Path:
    """The folder itself, or that of weights known by name."""
    folder = Path(model)
    if folder.is_dir():
        return folder
    if folder.exists() or "/" in model:
        raise UserInputError("--model", model, "a Hugging Face folder, or smollm2-135m")
    from rstar_model.fetch import fetch  # needs torch to convert weights, and a network

    return Path(fetch(model).path)
