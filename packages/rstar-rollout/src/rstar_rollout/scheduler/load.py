"""What a scheduler knows of a rollout and of an engine: lengths, reservations, free KV cache.

Lengths are tokens. KV memory is counted in blocks of the engine's own size. The prompt of a group is stored once on
an engine, whatever the number of its rollouts there, because all engines here share prefixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EngineCapacity", "EngineLoad", "Member", "RolloutSpec", "least_loaded"]


@dataclass(frozen=True)
class RolloutSpec:
    """A rollout as the scheduler sees it before it has begun.

    ``max_new_tokens`` is the most that may follow the prompt, tool results and separators included.
    """

    rollout_id: str
    group_id: str
    prompt_tokens: int
    max_new_tokens: int


@dataclass(frozen=True)
class EngineCapacity:
    """``kv_blocks`` of ``block_tokens`` tokens each; ``slots`` rollouts at most, whatever their length."""

    engine_id: str
    kv_blocks: int
    block_tokens: int
    slots: int

    @property
    def kv_tokens(self) -> int:
        """The KV cache in tokens."""
        return self.kv_blocks * self.block_tokens


class Member:
    """A rollout on an engine. Its length grows with the engine's clock while it generates."""

    __slots__ = ("_known", "_load", "_since", "blocks", "spec")

    def __init__(self, spec: RolloutSpec, load: EngineLoad, blocks: int, length: int) -> None:
        self.spec = spec
        self.blocks = blocks
        """Reserved for it alone; the group's prompt is counted at the engine."""
        self._load = load
        self._known = length
        self._since: float | None = None

    @property
    def length(self) -> float:
        """Tokens after the prompt, as far as known: exact between turns, the engine's pace within one."""
        if self._since is None:
            return self._known
        return min(self._known + self._load.clock - self._since, self.spec.max_new_tokens)

    def begin_turn(self) -> None:
        """It generates from now on."""
        self._since = self._load.clock

    def end_turn(self, length: int) -> None:
        """It waits for its tools, with this many tokens after the prompt."""
        self._since, self._known = None, length


class EngineLoad:
    """One engine's rollouts and reservations.

    The clock counts the tokens that a rollout gets which has been generating all the time; the owner moves it.
    """

    def __init__(self, capacity: EngineCapacity) -> None:
        self.capacity = capacity
        self.clock = 0.0
        self.members: dict[str, Member] = {}
        self.reserved_blocks = 0
        self.placed = 0
        """Rollouts that were ever sent here."""
        self.refused: int | None = None
        """Smallest number of blocks that did not fit since the last one left: larger ones need not be tried."""
        self._groups: Counter[str] = Counter()
        self._prompts: dict[str, int] = {}

    @property
    def engine_id(self) -> str:
        """The engine's name."""
        return self.capacity.engine_id

    @property
    def free_blocks(self) -> int:
        """Blocks that no rollout has reserved; negative where a policy does not count them."""
        return self.capacity.kv_blocks - self.reserved_blocks

    @property
    def free_slots(self) -> int:
        """Rollouts that may still be sent here."""
        return self.capacity.slots - len(self.members)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts stored here, each group's once."""
        return sum(self._prompts.values())

    def holds_group(self, group_id: str) -> bool:
        """Whether a rollout of the group is here, so that its prompt is cached."""
        return group_id in self._groups

    def group_members(self, group_id: str) -> int:
        """Rollouts of the group that are here."""
        return self._groups.get(group_id, 0)

    def blocks_needed(self, spec: RolloutSpec) -> int:
        """Worst-case blocks of one more rollout: a prompt that is here already costs only its last, partial block.

        A rollout that could outgrow the whole cache is counted as the whole cache: it runs alone.
        """
        size = self.capacity.block_tokens
        own = -(-(spec.prompt_tokens + spec.max_new_tokens) // size)
        if self.holds_group(spec.group_id):
            own -= spec.prompt_tokens // size
        return min(own, self.capacity.kv_blocks)

    def add(self, spec: RolloutSpec, length: int = 0) -> Member:
        """Place a rollout here; ``length``: tokens after the prompt that it brings along."""
        blocks = self.blocks_needed(spec)
        shared = spec.prompt_tokens // self.capacity.block_tokens
        if not self.holds_group(spec.group_id):
            # The group's first member pays for the prompt; the engine keeps that part until the last one has left.
            self._prompts[spec.group_id] = spec.prompt_tokens
            self.reserved_blocks += min(shared, blocks)
            blocks -= min(shared, blocks)
        self._groups[spec.group_id] += 1
        self.reserved_blocks += blocks
        member = self.members[spec.rollout_id] = Member(spec, self, blocks, length)
        self.placed += 1
        return member

    def remove(self, rollout_id: str) -> Member:
        """Give back what a rollout has reserved."""
        member = self.members.pop(rollout_id)
        group = member.spec.group_id
        self.reserved_blocks -= member.blocks
        self._groups[group] -= 1
        if not self._groups[group]:
            del self._groups[group]
            shared = self._prompts.pop(group) // self.capacity.block_tokens
            self.reserved_blocks -= min(shared, self.capacity.kv_blocks)
        self.refused = None
        return member


def least_loaded(loads: Iterable[EngineLoad]) -> list[EngineLoad]:
    """Engines by the share of their slots in use, then by the share of their cache that is reserved, then by name."""
    return sorted(
        loads,
        key=lambda load: (
            len(load.members) / max(load.capacity.slots, 1),
            load.reserved_blocks / max(load.capacity.kv_blocks, 1),
            load.engine_id,
        ),
    )
