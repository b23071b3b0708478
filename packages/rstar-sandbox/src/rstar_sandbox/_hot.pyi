INTERFACE: int

def new_namespace(stack_top: int, /) -> int: ...
def enter(
    out: int,
    err: int,
    channel: int,
    target: int,
    home: str,
    limits: tuple[tuple[int, int], ...],
    user: int,
    drop: bool,
    death: bool,
    ruleset: int,
    /,
) -> None: ...
