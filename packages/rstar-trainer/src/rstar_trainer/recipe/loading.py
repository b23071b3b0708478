"""From a recipe name or TOML file and `--set` overrides to a checked `Recipe`.

Whatever is wrong becomes one `UserInputError` line with the field, the value and what is accepted.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomllib
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe.recipe import Recipe

_RECIPES = "rstar_trainer.recipes"
_SHOWN_VALUE_CHARACTERS = 80
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")


def built_in_recipes() -> tuple[str, ...]:
    """Names of the recipes that are shipped with the package."""
    files = resources.files(_RECIPES).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load_recipe(name_or_path: str | Path = "quickstart", overrides: Sequence[str] = ()) -> Recipe:
    """Reads a built-in recipe or a TOML file and applies `key=value` overrides.

    Keys are dotted; elements of a list are addressed by position or by their name
    ("stages.0.steps=2", "stages.rl-1.steps=2"). Values are plain text, or TOML when they begin
    with a bracket, a brace or a quote; "none" stands for no value. Setting the path of a data
    source replaces its generator. Relative paths are taken from the working directory.

    Raises:
        UserInputError: unknown recipe, unreadable TOML, unknown key, or a value that does not fit.
    """
    values = _read(name_or_path)
    _apply(values, overrides)
    return recipe_from_mapping(values)


def recipe_from_mapping(values: Mapping[str, Any]) -> Recipe:
    """Checks a recipe given as nested tables (as TOML or JSON has it).

    Raises:
        UserInputError: unknown key, or a value that does not fit.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise _one_line(error, values) from None


def _read(name_or_path: str | Path) -> dict[str, Any]:
    text = str(name_or_path)
    names = built_in_recipes()
    if text in names:
        content = (resources.files(_RECIPES) / f"{text}.toml").read_text(encoding="utf-8")
    else:
        path = Path(text)
        if not path.is_file():
            accepted = f"should be a TOML file, or one of the built-in recipes: {', '.join(names)}"
            raise UserInputError("recipe", text, accepted)
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserInputError("recipe", text, f"a readable UTF-8 file ({error})") from None
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UserInputError("recipe", text, f"valid TOML: {_flat(str(error))}") from None


def _apply(values: dict[str, Any], overrides: Sequence[str]) -> None:
    pairs = [_pair(override) for override in overrides]
    for keys, value in pairs:
        if keys[0] == "data" and len(keys) == 3 and keys[2] in ("path", "generator") and value is not None:
            source = values.get("data", {}).get(keys[1])
            if isinstance(source, dict):
                # The other source of the file, and what was meant for it, no longer apply.
                for name in ("generator", "path", "count", "families"):
                    source.pop(name, None)
    for keys, value in pairs:
        _set(values, keys, value)


def _pair(override: str) -> tuple[list[str], Any]:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        raise UserInputError("--set", override, 'key=value, such as "seed=2" or "stages.rl-1.steps=4"')
    keys, text = key.split("."), text.strip()
    if text.lower() == "none":
        return keys, None
    if text[:1] in ("[", "{", '"', "'"):
        try:
            return keys, tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise UserInputError(key, text, f"a TOML value: {_flat(str(error))}") from None
    return keys, text


def _set(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    target: Any = values
    for depth, key in enumerate(keys[:-1]):
        if isinstance(target, dict):
            target = target.setdefault(key, {})
        else:
            target = target[_position(target, key, ".".join(keys[: depth + 1]))]
        if not isinstance(target, dict | list):
            raise UserInputError(".".join(keys), value, f'"{".".join(keys[: depth + 1])}" has no keys')
    if isinstance(target, dict):
        target[keys[-1]] = value
    else:
        target[_position(target, keys[-1], ".".join(keys))] = value


def _position(items: list[Any], key: str, field: str) -> int:
    names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if key in names:
        return names.index(key)
    if key.isascii() and key.isdigit() and int(key) < len(items):
        return int(key)
    raise UserInputError(field, key, f"a position from 0 to {len(items) - 1}, or one of {', '.join(names)}")


def _one_line(error: ValidationError, values: Mapping[str, Any]) -> UserInputError:
    errors = error.errors(include_url=False)
    # An unknown key explains a missing one, so it is told first.
    first = min(errors, key=lambda details: details["type"] != "extra_forbidden")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    field = _dotted(first["loc"], values) or "recipe"
    if first["type"] == "extra_forbidden":
        return UserInputError(field, _shown(first["input"]), _known_keys(first["loc"]) + more)
    if first["type"] == "missing":
        return UserInputError.message(f"{field} is missing{more}")
    if first["type"] == "value_error" and isinstance(first["input"], Mapping | BaseModel):
        # Checks over several fields name field and value in their own text.
        prefix = "" if field == "recipe" else f"{field}: needs "
        return UserInputError.message(f"{prefix}{_text(first)}{more}")
    return UserInputError(field, _shown(first["input"]), f"{_text(first)}{more}")


def _dotted(location: tuple[int | str, ...], values: Any) -> str:
    """The field as `--set` spells it, with list positions replaced by names."""
    parts = []
    for part in location:
        if isinstance(values, Mapping):
            values = values.get(str(part))
            parts.append(str(part))
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
            named = isinstance(values, Mapping) and isinstance(values.get("name"), str)
            parts.append(values["name"] if named else str(part))
        else:
            parts.append(str(part))
    return ".".join(parts)


def _known_keys(location: tuple[int | str, ...]) -> str:
    model: Any = Recipe
    for part in location[:-1]:
        if isinstance(part, str):
            model = _model_of(model.model_fields[part].annotation)
    names = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    hint = f'unknown key, did you mean "{close[0]}"? ' if close else "unknown key; "
    return f"{hint}known here: {', '.join(names)}"


def _model_of(annotation: Any) -> Any:
    """The section class inside `tuple[Stage, ...]`, `X | None` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_of(inner) for inner in getattr(annotation, "__args__", ()))
    return next((model for model in found if model is not None), None)


def _text(details: ErrorDetails) -> str:
    text = _flat(details["msg"])
    for prefix in ("Value error, ", "Input should be "):
        text = text.removeprefix(prefix)
    return text.replace(" should have ", " with ")


def _shown(value: Any) -> str:
    text = _flat(str(value))
    return text if len(text) <= _SHOWN_VALUE_CHARACTERS else text[: _SHOWN_VALUE_CHARACTERS - 3] + "..."


def _flat(text: str) -> str:
    return " ".join(text.split())
