"""Option groups: written once, seen by every command that takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rstar_rollout.cli_options import with_option_groups


@dataclass(frozen=True, kw_only=True)
class Paint:
    """A group."""

    colour: Annotated[str, typer.Option(help="Of the wall.")]
    coats: Annotated[int, typer.Option(help="One after another.")] = 1


def run(command, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(with_option_groups(command))
    result = CliRunner().invoke(app, arguments)
    return result.output.strip() if result.exit_code == 0 else f"exit {result.exit_code}"


def plain(paint: Paint, wall: int = 3) -> None:
    typer.echo(f"{paint.colour} {paint.coats} {wall}")


def thick(paint: Paint = Paint(colour="grey", coats=4)) -> None:
    typer.echo(f"{paint.colour} {paint.coats}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--colour", "red"), "red 1 3"),
        (("--wall", "7", "--coats", "2", "--colour", "red"), "red 2 7"),
        ((), "exit 2"),
        (("--colour", "red", "--coats", "two"), "exit 2"),
    ],
)
def test_options_of_a_group_are_options_of_the_command(arguments: tuple[str, ...], said: str):
    assert run(plain, *arguments) == said


def test_instance_as_default_has_the_defaults_of_its_options():
    assert run(thick) == "grey 4"
    assert run(thick, "--coats", "1") == "grey 1"
