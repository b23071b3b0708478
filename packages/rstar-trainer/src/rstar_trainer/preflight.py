"""What is checked before a run starts anything: files, folders and the model, each error in one line."""

from pathlib import Path

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe

__all__ = ["RECIPE_FILE", "check_files", "check_model_source", "check_resumable", "check_run_dir_is_free"]

# The resolved recipe in a run folder, as JSON.
RECIPE_FILE = "recipe.json"

_TOKENIZER = "tokenizer.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def check_files(recipe: Recipe) -> None:
    """Checks that every file and model folder that the recipe names is there.

    Raises:
        UserInputError: naming the field, the path and what should be there.
    """
    named = {
        "data.train.path": recipe.data.train.path,
        "data.heldout.path": recipe.data.heldout.path,
        "sft.path": recipe.sft.path,
    }
    for name in ("sandbox", "reward", "rollout", "sampling"):
        endpoint = getattr(recipe.services, name)
        for field in ("ca", "certificate", "private_key", "token_file"):
            named[f"services.{name}.{field}"] = getattr(endpoint, field)
    for field, path in named.items():
        if path is not None and not path.is_file():
            raise UserInputError(field, str(path), "should be a file that exists")
    check_model_source(recipe.model.source)


def check_model_source(source: str) -> None:
    """Checks a model folder; a name is left to `rstar_model.fetch`.

    Raises:
        UserInputError: the folder lacks configuration, weights or tokenizer.
    """
    folder = Path(source).expanduser()
    if not folder.exists():
        if folder.is_absolute() or len(folder.parts) > 1 or source.startswith(("./", "~")):
            raise UserInputError("model.source", source, "should be a Hugging Face folder that exists")
        return
    if not folder.is_dir():
        raise UserInputError("model.source", source, "should be a folder, not a file")
    if not (folder / "config.json").is_file():
        raise UserInputError("model.source", source, "should be a Hugging Face folder: config.json is missing")
    if not (folder / _TOKENIZER).is_file():
        raise UserInputError(
            "model.source", source, f"should hold a tokenizer: save {_TOKENIZER} of the model into the folder"
        )
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise UserInputError("model.source", source, f"should hold weights: {' or '.join(_WEIGHTS)} is missing")


def check_run_dir_is_free(run_dir: Path) -> None:
    """Checks that a new run would not write into something that is there.

    Raises:
        UserInputError: the folder is not empty.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise UserInputError("run_dir", str(run_dir), "should be a folder, not a file")
    if (run_dir / RECIPE_FILE).exists():
        raise UserInputError(
            "run_dir",
            str(run_dir),
            f"it holds a run already; continue that with `rstar-trainer resume {run_dir}`, "
            "or choose another folder with --set run_dir=...",
        )
    if run_dir.is_dir() and any(run_dir.iterdir()):
        accepted = "should be a new or an empty folder; choose one with --set run_dir=..."
        raise UserInputError("run_dir", str(run_dir), accepted)


def check_resumable(run_dir: Path) -> None:
    """Checks that a folder holds a run.

    Raises:
        UserInputError: it does not.
    """
    if not (run_dir / RECIPE_FILE).is_file():
        raise UserInputError("run", str(run_dir), f"should be the folder of a run: it has no {RECIPE_FILE}")
