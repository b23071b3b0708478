"""Where a recipe's model comes from: a name that rstar-model fetches, or a Hugging Face folder of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rstar_trainer.preflight import check_model_source

__all__ = ["ResolvedModel", "resolve_model"]


@dataclass(frozen=True)
class ResolvedModel:
    """A model folder and its origin, as recorded in the run."""

    path: Path
    source: str
    sha256: Mapping[str, str] = field(default_factory=dict)


def resolve_model(source: str) -> ResolvedModel:
    """The folder of a model, fetched into the cache when `source` is a name.

    Args:
        source: a folder, or a name such as "smollm2-135m".

    Raises:
        UserInputError: unknown name, or a folder without model or tokenizer.
    """
    check_model_source(source)
    path = Path(source).expanduser()
    if path.is_dir():
        return ResolvedModel(path, f"folder {path.resolve()}")
    from rstar_model.fetch import fetch

    fetched = fetch(source)
    return ResolvedModel(fetched.path, fetched.source, dict(fetched.sha256))
