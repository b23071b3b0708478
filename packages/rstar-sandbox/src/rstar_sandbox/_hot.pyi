from collections.abc import Callable
from typing import Any

INTERFACE: int

def new_namespace(stack_top: int, /) -> int: ...
def serve_forks(
    control: int,
    stack_top: int,
    namespace: int,
    tasks: int,
    others: int,
    rights: tuple[Any, ...],
    mapped: int,
    seed: Callable[[], object],
    hooks: bool,
    begin: bool,
    /,
) -> str | bytes: ...
def enter(out: int, err: int, channel: int, rights: tuple[Any, ...], /) -> None: ...
def make_immortal(objects: list[object], /) -> int: ...
