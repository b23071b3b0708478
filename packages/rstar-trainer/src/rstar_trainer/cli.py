"""The command line: run, plan, resume, data check, doctor, status, checkpoint, stop.

Everything that needs torch is imported inside the commands, so that help and errors come at once.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rstar_protos.cli import run_typer

__all__ = ["app", "main"]

app = typer.Typer(
    name="rstar-trainer",
    help="Trains agentic reasoners: SFT, then GRPO-RoC stages, over real services.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Problems from files.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RecipeArgument = Annotated[
    str, typer.Argument(metavar="[RECIPE]", help="A built-in recipe, or a TOML file.", show_default=True)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help='Overrides a recipe value, for example "seed=2" or "stages.rl-1.steps=4". Repeatable.',
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]

# Wide enough for the tables when the output goes to a file.
_FILE_WIDTH = 150


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"rstar-trainer {version_of('rstar-trainer')}")
        raise typer.Exit


@app.command()
def run(recipe: RecipeArgument = "quickstart", overrides: SetOption = None) -> None:
    """Runs the whole pipeline of a recipe, from fetching the weights to the report."""
    from rstar_trainer.plan import make_plan
    from rstar_trainer.progress import Progress
    from rstar_trainer.recipe import load_recipe

    resolved = load_recipe(recipe, overrides or ())
    warnings = make_plan(resolved).warnings
    with _interruptible(resolved.run_path), Progress(_console()) as progress:
        for warning in warnings:
            progress.message(f"warning: {warning}")
        from rstar_trainer import pipeline

        pipeline.run(resolved, progress)


@app.command()
def plan(recipe: RecipeArgument = "quickstart", overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Prints what a run would do: steps, rollouts, tokens, memory. Starts nothing."""
    from rstar_trainer.plan import make_plan
    from rstar_trainer.plan_view import print_plan
    from rstar_trainer.recipe import load_recipe

    made = make_plan(load_recipe(recipe, overrides or ()))
    if as_json:
        _print_json(made.to_json_dict())
    else:
        print_plan(made, _console())


@app.command()
def resume(
    run_dir: RunArgument,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="KIND",
            help="Go on although this differs from the checkpoint: data, recipe or packages. Repeatable.",
        ),
    ] = None,
) -> None:
    """Continues a run from its last checkpoint, bit for bit with the embedded engine."""
    from rstar_protos.errors import UserInputError
    from rstar_trainer.progress import Progress
    from rstar_trainer.run_folder import RunFolder
    from rstar_trainer.run_identity import ACCEPTABLE

    accepted = [kind for kind in ACCEPTABLE if kind in (accept or ())]
    for kind in accept or ():
        if kind not in ACCEPTABLE:
            raise UserInputError("--accept", kind, f"{', '.join(ACCEPTABLE[:-1])} or {ACCEPTABLE[-1]}")
    RunFolder.open(run_dir)
    with _interruptible(run_dir), Progress(_console()) as progress:
        from rstar_trainer import pipeline

        pipeline.resume(run_dir, progress, accepted)


@data_app.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSONL or parquet file.")],
    answers: Annotated[str, typer.Option(help='"integer" or "any"')] = "integer",
    limit: Annotated[int, typer.Option(min=0, help="Rows to read; 0: all.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Checks problems as training would: layout, answers, identifiers; prints count and fingerprint."""
    from rstar_protos.errors import UserInputError
    from rstar_trainer.data import fingerprint, read_problems

    if answers not in ("integer", "any"):
        raise UserInputError("--answers", answers, "integer or any")
    problems = read_problems(file, limit=limit, integers_only=answers == "integer")
    lengths = sorted(len(problem.text) for problem in problems)
    found = {
        "file": str(file),
        "problems": len(problems),
        "different_texts": len({problem.text for problem in problems}),
        "median_characters": lengths[len(lengths) // 2],
        "longest_characters": lengths[-1],
        "sha256": fingerprint(problems),
        "first": {"id": problems[0].problem_id, "problem": problems[0].text, "answer": problems[0].answer},
    }
    if as_json:
        _print_json(found)
        return
    for name, value in found.items():
        shown = f"{value['problem']} -> {value['answer']}" if isinstance(value, dict) else value
        typer.echo(f"{name.replace('_', ' ')}: {shown}")


@data_app.command("sft")
def data_sft(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSONL, JSON or parquet files.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write all usable conversations to this JSONL file, for sft.path.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Folder with a tokenizer: show a conversation token by token.")
    ] = None,
    index: Annotated[int, typer.Option(min=0, help="Which usable conversation to show, from 0.")] = 0,
    chat_format: Annotated[str, typer.Option(help="How conversations are written as tokens.")] = "rstar",
    as_json: JsonOption = False,
) -> None:
    """Reads tool-call and chat data sets for SFT; tells what was left out or changed, and why.

    Layouts: ToolACE, APIGen-MT, Glaive, Magicoder, Tulu 3, Nemotron, chat messages, and what --out writes.
    """
    from rstar_protos.errors import UserInputError
    from rstar_trainer.demonstrations import read_conversations, write_conversations

    read = [read_conversations(file) for file in files]
    conversations = [conversation for found, _ in read for conversation in found]
    if as_json:
        _print_json({"files": [report.to_json_dict() for _, report in read], "conversations": len(conversations)})
    else:
        for _, report in read:
            for line in report.lines():
                typer.echo(line)
    if out is not None:
        typer.echo(f"{write_conversations(out, conversations)} conversations written to {out}", err=as_json)
    if model is not None:
        from rstar_model.chat_format import ChatFormat
        from rstar_model.tokenizer import load_tokenizer
        from rstar_trainer.demonstrations import conversation_ledger, token_lines

        if index >= len(conversations):
            raise UserInputError("--index", index, f"a number below {len(conversations)}, the usable conversations")
        tokenizer = load_tokenizer(model)
        ledger = conversation_ledger(conversations[index], ChatFormat.load(chat_format), tokenizer)
        for line in token_lines(ledger, tokenizer):
            typer.echo(line)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Shows versions, processor, memory and GPUs, and what is missing."""
    from rstar_trainer.doctor import examine

    found = examine()
    if as_json:
        _print_json(found)
    else:
        _print_doctor(found, _console())
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def status(
    run_dir: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the metrics as JSON lines until the run ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows where a running job is."""
    from rstar_trainer.control_client import follow_metrics, run_status

    if follow:
        follow_metrics(run_dir, typer.echo)
        return
    found = run_status(run_dir)
    if as_json:
        _print_json(found)
        return
    ending = ", stopping" if found["stopping"] else ""
    typer.echo(f"{found['run_id']}: {found['stage']} {found['step']}/{found['stage_steps']}, {found['phase']}{ending}")


@app.command()
def checkpoint(run_dir: RunArgument) -> None:
    """Asks a running job for a checkpoint after its current step."""
    from rstar_trainer.control_client import request_checkpoint

    typer.echo(f"a checkpoint will be written after step {request_checkpoint(run_dir)} of the run")


@app.command()
def stop(run_dir: RunArgument) -> None:
    """Asks a running job to end after its current step, with a checkpoint."""
    from rstar_trainer.control_client import request_stop

    request_stop(run_dir)
    typer.echo(f"stopping after the current step; `rstar-trainer resume {run_dir}` continues")


def main() -> None:
    """Entry point: one-line errors and their exit codes."""
    run_typer(app)


@contextmanager
def _interruptible(run_dir: Path) -> Iterator[None]:
    """Has Ctrl-C end with a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from rstar_protos.errors import InterruptedRunError
        from rstar_trainer.run_folder import RunFolder

        begun = RunFolder(run_dir).holds_run
        hint = f"; `rstar-trainer resume {run_dir}` continues the run" if begun else " before the run began"
        raise InterruptedRunError(f"interrupted{hint}") from None


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def _print_json(values: dict[str, Any]) -> None:
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def _print_doctor(found: dict[str, Any], console: Console) -> None:
    table = Table(show_header=False)
    table.add_row("Python", f"{found['python']} on {found['platform']}")
    table.add_row("processor", f"{found['cpus']} cores, {found['memory_gb']} GB memory")
    table.add_row("free disk", f"{found['free_disk_gb']} GB")
    table.add_row("GPUs", ", ".join(found["gpus"]) or "none")
    for name, version in found["packages"].items():
        table.add_row(name, version or "missing")
    for name, entry in found["optional"].items():
        table.add_row(name, entry["version"] or f"not installed (optional: {entry['for']})")
    for name, obstacle in found["transfers"].items():
        table.add_row(f"engine.transfer = {name}", f"not here: {obstacle}" if obstacle else "possible")
    for name, value in found["environment"].items():
        table.add_row(name, value)
    console.print(table)
    for problem in found["problems"]:
        console.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
