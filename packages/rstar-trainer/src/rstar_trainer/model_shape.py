"""The shape of a model, read from its configuration and file headers without loading it."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rstar_protos.errors import UserInputError

__all__ = ["ModelShape", "model_shape"]


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    Attributes:
        parameters: number of parameters, tied ones once.
        layers: transformer layers.
        hidden: width of the residual stream.
        kv_heads: key and value heads per layer.
        head_dim: width of a head.
        vocabulary: rows of the output projection.
    """

    parameters: int
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Reads config.json and the headers of the safetensors files.

        Raises:
            UserInputError: the files are not what they should be.
        """
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            return cls(
                parameters=sum(_tensor_elements(path) for path in sorted(folder.glob("*.safetensors"))),
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                vocabulary=int(config["vocab_size"]),
            )
        except (OSError, KeyError, TypeError, ValueError, struct.error) as error:
            accepted = f"a Hugging Face folder with config.json and safetensors ({error!r})"
            raise UserInputError("model.source", str(folder), accepted) from None


# Names that `rstar_model.fetch` gets; their shape is known before they are fetched.
_KNOWN = {
    "smollm2-135m": ModelShape(
        parameters=134_515_008, layers=30, hidden=576, kv_heads=3, head_dim=64, vocabulary=49_152
    )
}


def model_shape(source: str) -> ModelShape | None:
    """The shape of a model folder or of a known name; None for other names."""
    folder = Path(source).expanduser()
    return ModelShape.of_folder(folder) if folder.is_dir() else _KNOWN.get(source)


def _tensor_elements(path: Path) -> int:
    # The format: length of the header (8 bytes, little endian), then the header as JSON.
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
