"""The generation loop of the transformers engine: many sequences, one step at a time.

Sequences join as rows come free and leave when their turn ends, so the batch stays full. Everything depends only on
the order of the requests, their token ids and their noise keys, never on time: the same requests give the same
batches, and the same ids bit by bit.

KV memory of a sequence whose turn has ended is parked outside the pool, so that its next turn only computes the new
tokens. Prompts that several sequences share are computed once, and so is what all prompts begin with.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rstar_rollout.engines.base import FinishReason, GenerationRequest, GenerationResult
from rstar_rollout.engines.kv_pool import KvPool
from rstar_rollout.engines.noise import TurnNoise
from rstar_rollout.engines.pool_attention import DecodePlan, PrefillPlan, PrefillSegment
from rstar_rollout.engines.sampler import SamplingRows, sample

__all__ = ["ContinuousBatch"]

_PREFILL_TOKENS = 2048  # of one forward pass; bounds activation memory
_MIN_SHARED_TOKENS = 32  # below this, sharing costs more than it saves
_PROMPTS_KEPT = 64


@dataclass
class _Row:
    """A sequence being generated; KV of ``tokens[:length]`` is in the pool."""

    request: GenerationRequest
    tokens: list[int]
    length: int
    noise: TurnNoise
    generated: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    cached: int = 0
    """Leading tokens whose KV was there already when the request came in."""

    @property
    def worst_case(self) -> int:
        return len(self.request.token_ids) + self.request.max_new_tokens


@dataclass(frozen=True)
class _Saved:
    """KV of a sequence of tokens outside the pool."""

    tokens: tuple[int, ...]
    kv: torch.Tensor


class ContinuousBatch:
    """Rows in progress, requests waiting, caches.

    Args:
        model: a causal language model whose attention is `pool_attention`.
        max_batch: rows.
        kv_bytes: memory for rows; as much again may be parked.
    """

    def __init__(self, model: torch.nn.Module, *, max_batch: int, kv_bytes: int) -> None:
        config: Any = model.config
        self._model = model
        self._device = next(model.parameters()).device
        dtype = next(model.parameters()).dtype
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        layers = int(config.num_hidden_layers)
        self._pool = KvPool(layers, kv_heads, head_dim, max_batch, dtype, self._device)
        self._budget_tokens = max(1, kv_bytes // self._pool.bytes_per_token)
        self._rows: list[_Row] = []  # position = row of the pool
        self._waiting: deque[GenerationRequest] = deque()
        self._parked: OrderedDict[str, _Saved] = OrderedDict()
        self._prompts: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
        self._common: _Saved | None = None
        self._shared = 0
        self._aborted: set[str] = set()
        self.weight_version = 0
        self.tokens_generated = 0

    @property
    def running(self) -> int:
        """Rows in use."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._waiting)

    @property
    def total_tokens(self) -> int:
        """Tokens of KV memory that rows may use."""
        return self._budget_tokens

    @property
    def reserved_tokens(self) -> int:
        """Worst-case tokens of the rows in use."""
        return len(self._rows) * max((row.worst_case for row in self._rows), default=0)

    def progress(self) -> list[tuple[str, Sequence[int]]]:
        """Ids generated so far by each running request."""
        return [(row.request.request_id, row.generated) for row in self._rows]

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not self._rows and not self._waiting

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests in this order."""
        self._waiting.extend(requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests at the next step; unknown ids are ignored."""
        ids = set(request_ids)
        known = {row.request.request_id for row in self._rows}
        known |= {request.request_id for request in self._waiting}
        self._aborted |= ids & known

    def release(self, sequence_id: str) -> None:
        """Forget what is parked of a sequence."""
        self._parked.pop(sequence_id, None)

    def forget_prompts(self) -> None:
        """Drop shared prompts, so that what comes next does not depend on what came before."""
        self._prompts.clear()
        self._common = None

    def reset(self) -> None:
        """Forget all requests and caches after a failure."""
        self._rows.clear()
        self._waiting.clear()
        self._aborted.clear()
        self.drop_caches()

    def drop_caches(self) -> None:
        """Drop everything computed with the present weights."""
        self.forget_prompts()
        self._parked.clear()
        self._pool.shrink()

    @torch.inference_mode()
    def step(self) -> list[tuple[str, GenerationResult]]:
        """Admit what fits, generate one token for every row; returns finished requests by id."""
        finished = self._finish_aborted()
        self._admit()
        if self._rows:
            self._decode()
            finished += self._finish_ended()
        return finished

    # -- admission ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        free = self._pool.rows - len(self._rows)
        # Joining one by one would cost a small forward pass each; wait until an eighth of the rows is free.
        enough = min(len(self._waiting), max(1, self._pool.rows // 8))
        if not self._waiting or (self._rows and free < enough):
            return
        admitted: list[_Row] = []
        longest = max((row.worst_case for row in self._rows), default=0)
        while self._waiting and len(admitted) < free:
            request = self._waiting[0]
            need = max(longest, len(request.token_ids) + request.max_new_tokens)
            rows = len(self._rows) + len(admitted) + 1
            if rows > 1 and need * rows > self._budget_tokens:
                break
            longest = need
            self._waiting.popleft()
            admitted.append(_Row(request, list(request.token_ids), 0, TurnNoise(request.noise)))
        if not admitted:
            return
        used = max((row.length for row in self._rows), default=0)
        self._pool.ensure(longest, len(self._rows), used)
        first = len(self._rows)
        self._rows.extend(admitted)
        self._prefill(first)
        self._update_shared(first)

    def _prefill(self, first: int) -> None:
        """KV of all tokens but the last for rows ``first:``; the last one is the first input of decoding."""
        segments: list[PrefillSegment] = []
        copies: list[tuple[int, int]] = []  # (row that computes it, row that gets a copy)
        owner: dict[tuple[int, ...], int] = {}
        fresh: list[int] = []
        for index in range(first, len(self._rows)):
            row = self._rows[index]
            goal = tuple(row.tokens[:-1])
            parked = self._parked.pop(row.request.sequence_id, None)
            if parked is not None and goal[: len(parked.tokens)] == parked.tokens:
                self._pool.load(index, parked.kv)
                row.length = row.cached = len(parked.tokens)
                self._add_segment(segments, index, goal)
            elif goal in self._prompts:
                self._prompts.move_to_end(goal)
                self._pool.load(index, self._prompts[goal])
                row.length = row.cached = len(goal)
            elif goal in owner:
                copies.append((owner[goal], index))
                row.length = len(goal)
            else:
                owner[goal] = index
                fresh.append(index)
        self._find_common([self._rows[index] for index in fresh])
        for index in fresh:
            row = self._rows[index]
            goal = tuple(row.tokens[:-1])
            common = self._common
            if common is not None and goal[: len(common.tokens)] == common.tokens:
                self._pool.load(index, common.kv)
                row.length = row.cached = len(common.tokens)
            self._add_segment(segments, index, goal)
        self._run_prefill(segments)
        wanted = {tuple(request.token_ids[:-1]) for request in self._waiting}
        for goal, index in owner.items():
            if goal in wanted:
                self._prompts[goal] = self._pool.save(index, len(goal))
                if len(self._prompts) > _PROMPTS_KEPT:
                    self._prompts.popitem(last=False)
        for source, target in copies:
            self._pool.move(source, target, self._rows[target].length)

    def _add_segment(self, segments: list[PrefillSegment], index: int, goal: tuple[int, ...]) -> None:
        row = self._rows[index]
        if len(goal) > row.length:
            segments.append(PrefillSegment(0, len(goal) - row.length, index, row.length))
            row.length = len(goal)

    def _find_common(self, fresh: Sequence[_Row]) -> None:
        """Compute once, in a forward pass of its own, what all new prompts begin with."""
        if len(fresh) < 2:
            return
        common = self._common.tokens if self._common is not None else ()
        if common and all(tuple(row.tokens[: len(common)]) == common for row in fresh):
            return
        length = min(len(row.tokens) for row in fresh) - 1
        for row in fresh[1:]:
            length = _common_length(fresh[0].tokens, row.tokens, length)
        if length < _MIN_SHARED_TOKENS:
            self._common = None
            return
        index = self._rows.index(fresh[0])
        self._run_prefill([PrefillSegment(0, length, index, 0)])
        self._common = _Saved(tuple(fresh[0].tokens[:length]), self._pool.save(index, length))

    def _run_prefill(self, segments: list[PrefillSegment]) -> None:
        # A long segment is cut, because one forward pass takes a bounded number of tokens.
        pieces: deque[PrefillSegment] = deque()
        for segment in segments:
            for start in range(0, segment.stop, _PREFILL_TOKENS):
                stop = min(start + _PREFILL_TOKENS, segment.stop)
                pieces.append(PrefillSegment(0, stop - start, segment.row, segment.past + start))
        while pieces:
            batch: list[PrefillSegment] = []
            ids: list[int] = []
            rows: set[int] = set()
            while pieces and pieces[0].row not in rows and len(ids) + pieces[0].stop <= _PREFILL_TOKENS:
                piece = pieces.popleft()
                rows.add(piece.row)
                start = len(ids)
                ids.extend(self._rows[piece.row].tokens[piece.past : piece.past + piece.stop])
                batch.append(PrefillSegment(start, len(ids), piece.row, piece.past))
            plan = PrefillPlan(self._pool, batch, self._device)
            self._forward(ids, plan)

    def _update_shared(self, first: int) -> None:
        """Leading tokens that all rows have in common; stays valid when rows leave."""
        if first == 0:
            self._shared = len(self._rows[0].tokens)
        lead = self._rows[0].tokens
        length = min(self._shared, min(len(row.tokens) for row in self._rows) - 1)
        for row in self._rows[max(first, 1) :]:
            length = _common_length(lead, row.tokens, length)
        self._shared = length if length >= _MIN_SHARED_TOKENS and len(self._rows) > 1 else 0

    # -- decoding -------------------------------------------------------------------------------------

    def _forward(self, ids: list[int], plan: PrefillPlan | DecodePlan) -> torch.Tensor:
        """Logits [tokens, vocabulary] for decoding, of the last token only for prefill (not used)."""
        keep = 0 if isinstance(plan, DecodePlan) else 1
        output = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=plan.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep,
            rstar_plan=plan,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _decode(self) -> None:
        rows = self._rows
        plan = DecodePlan(self._pool, [row.length for row in rows], self._shared, self._device)
        logits = self._forward([row.tokens[row.length] for row in rows], plan)
        settings = SamplingRows(
            temperature=[row.request.temperature for row in rows],
            top_p=[row.request.top_p for row in rows],
            top_k=[row.request.top_k for row in rows],
            uniform=[row.noise.uniform(len(row.generated)) for row in rows],
        )
        ids, log_probs = sample(logits, settings)
        for row, token, log_prob in zip(rows, ids, log_probs, strict=True):
            row.length += 1
            row.tokens.append(token)
            row.generated.append(token)
            row.log_probs.append(log_prob)
        self.tokens_generated += len(rows)

    # -- leaving --------------------------------------------------------------------------------------

    def _finish_ended(self) -> list[tuple[str, GenerationResult]]:
        finished: list[tuple[str, GenerationResult]] = []
        for index in range(len(self._rows) - 1, -1, -1):
            row = self._rows[index]
            if row.generated[-1] in row.request.stop_ids:
                finished.append(self._leave(index, "stop"))
            elif len(row.generated) >= row.request.max_new_tokens:
                finished.append(self._leave(index, "length"))
        return finished

    def _finish_aborted(self) -> list[tuple[str, GenerationResult]]:
        if not self._aborted:
            return []
        finished: list[tuple[str, GenerationResult]] = []
        for request in [r for r in self._waiting if r.request_id in self._aborted]:
            self._waiting.remove(request)
            finished.append((request.request_id, GenerationResult((), (), "aborted", self.weight_version)))
        for index in range(len(self._rows) - 1, -1, -1):
            if self._rows[index].request.request_id in self._aborted:
                finished.append(self._leave(index, "aborted"))
        self._aborted.clear()
        return finished

    def _leave(self, index: int, reason: FinishReason) -> tuple[str, GenerationResult]:
        """Take a row out, park its KV, and move the last row into its place."""
        row = self._rows[index]
        if reason == "stop":
            tokens = tuple(row.tokens[: row.length])
            self._park(row.request.sequence_id, _Saved(tokens, self._pool.save(index, row.length)))
        last = self._rows.pop()
        if last is not row:
            self._pool.move(len(self._rows), index, last.length)
            self._rows[index] = last
        result = GenerationResult(
            tuple(row.generated),
            tuple(row.log_probs) if row.request.log_probs else (),
            reason,
            self.weight_version,
            cached_tokens=row.cached,
        )
        return row.request.request_id, result

    def _park(self, sequence_id: str, saved: _Saved) -> None:
        self._parked[sequence_id] = saved
        total = sum(len(entry.tokens) for entry in self._parked.values())
        while total > self._budget_tokens:
            _, dropped = self._parked.popitem(last=False)
            total -= len(dropped.tokens)


def _common_length(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Number of equal leading tokens, at most ``limit``."""
    for index in range(min(limit, len(first), len(second))):
        if first[index] != second[index]:
            return index
    return min(limit, len(first), len(second))
