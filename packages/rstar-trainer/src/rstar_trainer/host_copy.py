"""A copy of nested state on the host, which stays as it is while its origin changes."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["host_copy"]


def host_copy(state: Any) -> Any:
    """Copies tensors inside mappings, lists and tuples into memory of their own.

    Tensors that share their memory, such as tied weights, share it in the copy too.

    Args:
        state: as `torch.save` takes it.
    """
    return _copy(state, {})


def _copy(state: Any, done: dict[Any, torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        key = (state.device, state.data_ptr(), state.dtype, state.shape, state.stride())
        if key not in done:
            done[key] = state.detach().to("cpu", copy=True)
        return done[key]
    if isinstance(state, dict):
        return {name: _copy(value, done) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copy(value, done) for value in state)
    return state
