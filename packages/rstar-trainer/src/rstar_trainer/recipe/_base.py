"""What all recipe sections share: frozen, unknown keys refused, "none" spelled in TOML."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A part of a recipe. Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def _none_from_text(value: Any) -> Any:
    return None if isinstance(value, str) and value.lower() == "none" else value


# TOML has no null, so the text "none" stands for it in fields that may be absent.
NoneFromText = BeforeValidator(_none_from_text)

OptionalText = Annotated[str | None, NoneFromText]
