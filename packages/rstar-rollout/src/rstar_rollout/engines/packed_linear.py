"""Linear layers with weights in oneDNN's own blocked layout.

Without it every call re-orders a bfloat16 weight on the fly; for the few dozen rows of a decoding step that costs as
much as the multiplication itself. The packed copy is private to the layer: `nn.Linear.weight` stays as it was, so
loading and checksums see ordinary tensors, and `repack` follows an update of it.
"""

from __future__ import annotations

import torch

__all__ = ["pack_linears", "repack"]

_ROWS = 64  # the number of rows the layout is chosen for; others work too


class _PackedLinear(torch.nn.Linear):
    """An `nn.Linear` that multiplies with its packed copy. Never constructed: an existing layer changes its class."""

    packed: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")
        return result


def pack_linears(model: torch.nn.Module) -> bool:
    """Pack all linear layers of a model on the CPU in bfloat16.

    Returns:
        False, with the model unchanged, where this torch or this machine cannot.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.bfloat16 or not _supported():
        return False
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = _PackedLinear
    repack(model)
    return True


def repack(model: torch.nn.Module) -> None:
    """Make the packed copies anew from the present weights; does nothing for a model that is not packed."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _PackedLinear):
                weight = module.weight.detach()
                module.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)


def _supported() -> bool:
    """Whether packing works here and gives the plain result; the operators are torch-internal and may go away."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        layer = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        rows = torch.linspace(-1, 1, 3 * 64).reshape(3, 64).bfloat16()
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight, _ROWS)
        result = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        return torch.allclose(result, layer(rows), atol=1e-2, rtol=1e-2)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
