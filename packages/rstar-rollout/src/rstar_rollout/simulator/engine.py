"""A simulated engine: continuous batching over a KV cache of fixed size, in continuous time.

Sequences in the batch share the decode steps; prefill stops them all for its time. When the running sequences outgrow
the cache, half of them, the youngest, are evicted: their KV is lost and computed again when they come back. Sequences
between two turns keep their KV only as long as nobody needs the memory; the oldest is dropped first.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque

from rstar_rollout.simulator.speed import SpeedCurve

__all__ = ["SimulatedEngine"]

_WATERMARK = 0.01  # share of the cache that stays free when a sequence comes in, as in vLLM


class _Sequence:
    """A rollout on the engine. ``context`` counts its tokens as of ``since``, on the engine's step clock."""

    __slots__ = ("context", "end", "evicted", "fresh", "group", "limit", "name", "prompt", "since", "tokens")

    def __init__(self, name: str, group: str, prompt: int, limit: int) -> None:
        self.name, self.group, self.prompt, self.limit = name, group, prompt, limit
        self.context = 0
        self.fresh = 0  # tokens of the context that the engine has never seen
        self.evicted = False
        self.tokens = 0.0
        self.since = 0.0
        self.end = 0.0


class SimulatedEngine:
    """See the module text.

    Args:
        engine_id: its name.
        speed: its curve.
        kv_tokens: size of its cache, tokens.
    """

    def __init__(self, engine_id: str, speed: SpeedCurve, kv_tokens: int) -> None:
        self.engine_id = engine_id
        self.kv_tokens = kv_tokens
        self.now = 0.0
        self.steps = 0.0
        """Decode steps so far: what every sequence in the batch has got."""
        self.busy_seconds = 0.0
        self.recomputed_tokens = 0
        self.evictions = 0
        self.peak_tokens = 0.0
        self._speed = speed
        self._prefill = 0.0  # seconds of prefill still to do
        self._running: dict[str, _Sequence] = {}
        self._heap: list[tuple[float, int, _Sequence]] = []
        self._order = 0
        self._context = 0.0  # of the running sequences, prompts included
        self._own = 0.0  # the same without prompts
        self._parked: OrderedDict[str, _Sequence] = OrderedDict()
        self._parked_tokens = 0
        self._known: dict[str, _Sequence] = {}
        self._groups: Counter[str] = Counter()
        self._prompts = 0
        self._queue: deque[_Sequence] = deque()

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def _used(self) -> float:
        """KV memory of the running sequences, tokens; prompts are stored once for a group."""
        return self._own + self._prompts

    def advance(self, time: float) -> None:
        """Let time pass; the caller never passes over `next_event`."""
        seconds = time - self.now
        self.now = time
        if not self._running or seconds <= 0:
            return
        self.busy_seconds += seconds
        done = min(seconds, self._prefill)
        self._prefill -= done
        if seconds > done:
            self._grow(self._speed.steps_within(seconds - done, len(self._running), self._context))

    def _grow(self, steps: float) -> None:
        self.steps += steps
        grown = steps * len(self._running)
        self._context += grown
        self._own += grown
        self.peak_tokens = max(self.peak_tokens, self._used)
        while self._parked and self._used + self._parked_tokens > self.kv_tokens:
            _, dropped = self._parked.popitem(last=False)
            self._parked_tokens -= dropped.context - dropped.prompt

    def next_event(self) -> float | None:
        """When the next turn ends or the cache overflows; None: nothing runs."""
        if not self._running:
            return None
        steps = max(0.0, self._heap[0][0] - self.steps)
        if len(self._running) > 1:
            steps = min(steps, max(0.0, (self.kv_tokens - self._used) / len(self._running)))
        return self.now + self._prefill + self._speed.steps_seconds(steps, len(self._running), self._context)

    def begin_turn(self, name: str, group: str, prompt: int, limit: int, new_tokens: int, tokens: int) -> None:
        """A turn comes in: ``new_tokens`` of input that the engine has not seen, then ``tokens`` to generate.

        ``limit`` is the most that may follow the prompt, ``new_tokens`` of a first turn the prompt.
        """
        sequence = self._known.get(name)
        if sequence is None:
            sequence = self._known[name] = _Sequence(name, group, prompt, limit)
            if not self._groups[group]:
                self._prompts += prompt
            else:
                new_tokens = 0  # the group's prompt is cached
            self._groups[group] += 1
            sequence.context = prompt
        else:
            sequence.context += new_tokens
            if name in self._parked:
                # Its memory is counted with its new length only once it runs.
                self._parked_tokens += new_tokens
        sequence.fresh, sequence.tokens = new_tokens, tokens
        self._queue.append(sequence)
        self._admit()

    def _admit(self) -> None:
        """Take sequences that wait into the batch, in order, while their present length fits."""
        while self._queue:
            sequence = self._queue[0]
            own = sequence.context - sequence.prompt
            # One that was evicted comes back when it can run to its end: fewer evictions than coming back at once.
            need = min(sequence.limit, self.kv_tokens * (1 - _WATERMARK) - self._prompts) if sequence.evicted else own
            if self._running and need > self.kv_tokens * (1 - _WATERMARK) - self._used:
                return
            self._queue.popleft()
            prefill = sequence.fresh
            if self._parked.pop(sequence.name, None) is not None:
                self._parked_tokens -= own
            elif own > sequence.fresh:
                # Its KV was dropped: all of it beyond the group's prompt is computed again.
                self.recomputed_tokens += own - sequence.fresh
                prefill = own
            self._prefill += prefill * self._speed.prefill
            sequence.evicted, sequence.fresh = False, 0
            sequence.since = self.steps
            sequence.end = self.steps + sequence.tokens
            self._running[sequence.name] = sequence
            self._order += 1
            heapq.heappush(self._heap, (sequence.end, self._order, sequence))
            self._context += sequence.context
            self._own += own

    def ended(self) -> list[str]:
        """Turns that have just ended, taken out of the batch with their KV parked; evicts on overflow."""
        done: list[str] = []
        while self._heap and self._heap[0][0] <= self.steps + 1e-6:
            _, _, sequence = heapq.heappop(self._heap)
            if self._running.get(sequence.name) is not sequence or sequence.end > self.steps + 1e-6:
                continue  # evicted meanwhile; it has another entry now
            self._leave(sequence)
            sequence.context = round(sequence.context)
            self._parked[sequence.name] = sequence
            self._parked_tokens += sequence.context - sequence.prompt
            done.append(sequence.name)
        if not done and self._running and self._used >= self.kv_tokens - 1e-6:
            self._evict()
        self._admit()
        return done

    def _leave(self, sequence: _Sequence) -> None:
        grown = min(self.steps - sequence.since, sequence.tokens)
        del self._running[sequence.name]
        self._context -= sequence.context + (self.steps - sequence.since)
        self._own -= sequence.context - sequence.prompt + (self.steps - sequence.since)
        sequence.context += round(grown)
        sequence.tokens -= grown

    def _evict(self) -> None:
        """Half of the running sequences, the youngest first, lose their KV and wait for room to finish."""
        if len(self._running) < 2:
            return
        victims = sorted(self._running.values(), key=lambda sequence: -sequence.since)[: (len(self._running) + 1) // 2]
        for sequence in victims:
            self._leave(sequence)
            self.evictions += 1
            sequence.evicted = True
            self._queue.append(sequence)
        # Entries of the evicted in the heap are recognised by their sequence having left.
        live = [entry for entry in self._heap if self._running.get(entry[2].name) is entry[2]]
        self._heap[:] = live
        heapq.heapify(self._heap)

    def finish(self, name: str) -> None:
        """A rollout has ended: its memory is free."""
        sequence = self._known.pop(name)
        if self._parked.pop(name, None) is not None:
            self._parked_tokens -= sequence.context - sequence.prompt
        self._groups[sequence.group] -= 1
        if not self._groups[sequence.group]:
            del self._groups[sequence.group]
            self._prompts -= sequence.prompt
        self._admit()
