"""What is checked before a run starts anything: files, folders and the model, each error in one line."""

from pathlib import Path

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe

__all__ = ["check_files", "check_model_source"]

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
            raise UserInputError(field, str(path), "a file that exists")
    check_model_source(recipe.model.source)


def check_model_source(source: str) -> None:
    """Checks a model folder; a name is left to `rstar_model.fetch`.

    Raises:
        UserInputError: the folder lacks configuration, weights or tokenizer.
    """
    folder = Path(source).expanduser()
    if not folder.exists():
        if folder.is_absolute() or len(folder.parts) > 1 or source.startswith(("./", "~")):
            raise UserInputError("model.source", source, "a Hugging Face folder that exists")
        return
    if not folder.is_dir():
        raise UserInputError("model.source", source, "a folder, not a file")
    if not (folder / "config.json").is_file():
        raise UserInputError("model.source", source, "a Hugging Face folder: config.json is missing")
    if not (folder / _TOKENIZER).is_file():
        raise UserInputError(
            "model.source", source, f"a folder with the tokenizer of the model: {_TOKENIZER} is missing"
        )
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise UserInputError("model.source", source, f"a folder with weights: {' or '.join(_WEIGHTS)} is missing")
