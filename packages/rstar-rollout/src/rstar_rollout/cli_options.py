"""Options that several commands of `rstar-rollout` share, as groups that are written down once.

A group is a dataclass whose fields are options; a command has one parameter for each group that it takes, and
`with_option_groups` puts the group's options in the parameter's place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_type_hints

import typer

from rstar_protos.service import ServeSettings, read_token, serve_settings
from rstar_rollout.limits import SamplingSettings

if TYPE_CHECKING:
    from rstar_rollout.serving import EngineOptions

__all__ = [
    "OPTION_NAMES",
    "BatchOptions",
    "ModelOptions",
    "OptionalFloat",
    "OptionalInt",
    "OptionalInts",
    "OptionalPath",
    "OptionalStrings",
    "SamplingOptions",
    "ServiceOptions",
    "with_option_groups",
]

# typer on Python 3.10 reads Optional, not X | None, in annotations that are strings.
OptionalPath = Optional[Path]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045
OptionalStrings = Optional[list[str]]  # noqa: UP045
OptionalInts = Optional[list[int]]  # noqa: UP045

_Tls = Annotated[OptionalPath, typer.Option(help="PEM file.")]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Where a service listens, and who may call it."""

    listen: Annotated[str, typer.Option(help="unix:/path or host:port; port 0: any free one.")]
    tls_cert: _Tls = None
    tls_key: _Tls = None
    tls_client_ca: _Tls = None
    token_file: Annotated[OptionalPath, typer.Option(help="File whose first line is the bearer token.")] = None
    metrics_port: Annotated[OptionalInt, typer.Option(help="Loopback port for Prometheus.")] = None
    watch_parent: Annotated[bool, typer.Option("--watch-parent", help="End when standard input ends.")] = False

    def settings(self) -> ServeSettings:
        """The checked settings.

        Raises:
            UserInputError: an address, file or combination that cannot be used.
        """
        return serve_settings(
            self.listen,
            self.tls_cert,
            self.tls_key,
            self.tls_client_ca,
            self.token_file,
            self.metrics_port,
            self.watch_parent,
        )


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The policy: its model, the engine that runs it, and what it is offered."""

    model: Annotated[Path, typer.Option(help="Hugging Face model folder.")]
    engine: Annotated[str, typer.Option(help="transformers (embedded default), vllm, or endpoint.")] = "transformers"
    chat_format: Annotated[str, typer.Option(help="Chat format: a name or a .toml file.")] = "rstar"
    tool: Annotated[
        OptionalStrings, typer.Option(help="A registered tool, may be repeated; none: python where there is a sandbox.")
    ] = None
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16"
    threads: Annotated[OptionalInt, typer.Option(help="CPU threads of the model; none: torch's choice.")] = None
    device: Annotated[str, typer.Option(help="torch device of the transformers engine.")] = "cpu"
    endpoint: Annotated[
        OptionalStrings, typer.Option(help="Completions API for --engine endpoint; may be repeated, one engine each.")
    ] = None
    endpoint_key_file: Annotated[
        OptionalPath, typer.Option(help="File whose first line is the API key that endpoints are sent.")
    ] = None

    @property
    def tools(self) -> tuple[str, ...] | None:
        """Names of the tools; None: the default."""
        return tuple(self.tool) if self.tool else None

    def engine_options(self, **more: Any) -> EngineOptions:
        """Options of the engine; ``more``: those of `EngineOptions` that are not here."""
        from rstar_rollout.serving import EngineOptions

        return EngineOptions(
            type=self.engine,
            dtype=self.dtype,
            threads=self.threads,
            device=self.device,
            endpoints=tuple(self.endpoint or ()),
            api_key=read_token(self.endpoint_key_file, "--endpoint-key-file"),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How many rollouts run at once, and where."""

    deterministic: Annotated[
        bool, typer.Option("--deterministic/--no-deterministic", help="Lockstep rounds, bit-equal from run to run.")
    ] = True
    max_batch: Annotated[int, typer.Option(help="Sequences generated at once.")] = 96
    kv_gib: Annotated[
        OptionalFloat,
        typer.Option(help="Memory for the KV cache of running sequences, GiB; none: 3, or vLLM's choice."),
    ] = None
    engines: Annotated[int, typer.Option(help="Engines, each with accelerators and KV cache of its own.")] = 1
    scheduler: Annotated[
        str,
        typer.Option(
            help="Who gets which engine: kv_balanced (worst case), kv_learned (lengths seen), least_in_flight or "
            "static."
        ),
    ] = "kv_balanced"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn, and how long a rollout may go on."""

    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0: greedy.")] = 1.0
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1: off.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Top-k sampling; 0: off.")] = 0
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0
    max_turns: Annotated[int, typer.Option(help="Assistant turns of a rollout.")] = 10
    tool_seconds: Annotated[
        float, typer.Option(help="Wall clock limit of a tool call, seconds; a sandbox gives at most 600 by default.")
    ] = 5.0

    def settings(self) -> SamplingSettings:
        """The checked settings.

        Raises:
            UserInputError: a value out of range.
        """
        return SamplingSettings(self.temperature, self.top_p, self.top_k, self.seed)


_GROUPS: tuple[type[Any], ...] = (ServiceOptions, ModelOptions, BatchOptions, SamplingOptions)

OPTION_NAMES = {
    **{option.name: f"--{option.name.replace('_', '-')}" for kind in _GROUPS for option in fields(kind)},
    "model folder": "--model",
    "max_response_tokens": "--max-response-tokens",
    "limits.wall_seconds": "--tool-seconds",
}
"""Options by the names that errors of the settings behind them have."""


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its groups in the place of the groups.

    Args:
        command: all of whose parameters can be given by name. The default of a group's parameter, an instance of the
            group, has the defaults of its options.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            options = get_type_hints(kind, include_extras=True)
            parameters += [
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=_default(option, parameter.default),
                    annotation=options[option.name],
                )
                for option in fields(kind)
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{option.name: values.pop(option.name) for option in fields(kind)})
        command(**values)

    # Typer reads either of them, by version.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as PEP 362 has it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _default(option: Field[Any], group: Any) -> Any:
    if group is not inspect.Parameter.empty:
        return getattr(group, option.name)
    return inspect.Parameter.empty if option.default is MISSING else option.default
