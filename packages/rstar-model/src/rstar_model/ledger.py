"""The token ledger: what one rollout consists of, token by token.

Spans are only ever appended. The ledger owns token ids, loss mask, log-probabilities and weight versions,
so their lengths cannot disagree: each is derived from the same spans and covers prompt and response alike
(index i of each belongs to token i of the whole sequence).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rstar_model.types import SpanKind
from rstar_protos.errors import RStarError

__all__ = ["LedgerError", "Span", "TokenLedger"]

_MAX_TOKEN_ID = 2**31 - 1  # int32 on the wire


class LedgerError(RStarError):
    """A span that would break an invariant of the ledger; the ledger is unchanged."""


@dataclass(frozen=True)
class Span:
    """A run of tokens of one kind.

    ``log_probs`` (natural logarithm, at the sampling temperature) and ``weight_version`` are there for POLICY
    spans and None otherwise. ``turn`` is the 0-based assistant turn that the span belongs to.
    """

    kind: SpanKind
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None = None
    weight_version: int | None = None
    turn: int = 0

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)


class TokenLedger:
    """Append-only spans of one sequence.

    Args:
        spans: appended in order.
        demonstration: the POLICY spans come from a written example, not from an engine. They carry loss but no
            log-probabilities and no weight version, and such a ledger cannot be sent as a rollout.

    A token that no engine generated has no log-probability and hence no loss: it is TEMPLATE. So an end-of-turn
    token is POLICY exactly when the engine emitted it.
    """

    def __init__(self, spans: Iterable[Span] = (), *, demonstration: bool = False) -> None:
        self._spans: list[Span] = []
        self._length = 0
        self.demonstration = demonstration
        for span in spans:
            self.append(
                span.kind,
                span.token_ids,
                log_probs=span.log_probs,
                weight_version=span.weight_version,
                turn=span.turn,
            )

    def append(
        self,
        kind: SpanKind,
        token_ids: Sequence[int],
        *,
        log_probs: Sequence[float] | None = None,
        weight_version: int | None = None,
        turn: int = 0,
    ) -> None:
        """Add one span; a span without tokens is dropped.

        Args:
            kind: PROMPT spans come first only.
            token_ids: ids in [0, 2^31).
            log_probs: one finite number per token for POLICY, None for every other kind.
            weight_version: version of the weights that generated a POLICY span, None for every other kind.
            turn: 0-based, never smaller than that of the span before.

        Raises:
            LedgerError: an invariant does not hold; nothing was added.
        """
        kind = SpanKind(kind)
        ids = tuple(int(token) for token in token_ids)
        probs = None if log_probs is None else tuple(float(value) for value in log_probs)
        self._check(kind, ids, probs, weight_version, turn)
        if ids:
            self._spans.append(Span(kind, ids, probs, weight_version, turn))
            self._length += len(ids)

    def _check(
        self,
        kind: SpanKind,
        ids: tuple[int, ...],
        log_probs: tuple[float, ...] | None,
        weight_version: int | None,
        turn: int,
    ) -> None:
        if ids and not 0 <= min(ids) <= max(ids) <= _MAX_TOKEN_ID:
            raise LedgerError(f"token ids must lie in [0, {_MAX_TOKEN_ID}], got {min(ids)} to {max(ids)}")
        last = self._spans[-1] if self._spans else None
        if turn < 0 or (last is not None and turn < last.turn):
            raise LedgerError(f"turn {turn} after turn {last.turn if last else 0}: turns only go forward")
        if kind is SpanKind.PROMPT and last is not None and last.kind is not SpanKind.PROMPT:
            raise LedgerError(f"a prompt span after a {last.kind.value} span: the prompt comes first")
        if kind is not SpanKind.POLICY or self.demonstration:
            if log_probs is not None or weight_version is not None:
                owner = "a demonstration" if self.demonstration else f"a {kind.value} span"
                raise LedgerError(f"{owner} has no log-probabilities and no weight version")
            return
        if log_probs is None or len(log_probs) != len(ids):
            found = "none" if log_probs is None else str(len(log_probs))
            raise LedgerError(f"a policy span of {len(ids)} tokens needs as many log-probabilities, got {found}")
        if not all(math.isfinite(value) for value in log_probs):
            raise LedgerError("log-probabilities of a policy span must be finite")
        if weight_version is None or weight_version < 0:
            raise LedgerError(f"a policy span needs the weight version that made it, got {weight_version}")

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans in order."""
        return tuple(self._spans)

    @property
    def token_ids(self) -> list[int]:
        """Ids of the whole sequence."""
        return [token for span in self._spans for token in span.token_ids]

    @property
    def loss_mask(self) -> list[bool]:
        """True where the policy chose the token. As long as ``token_ids``."""
        return [span.kind is SpanKind.POLICY for span in self._spans for _ in span.token_ids]

    @property
    def log_probs(self) -> list[float]:
        """Engine log-probability of each token, nan where there is none. As long as ``token_ids``."""
        return [value for span in self._spans for value in (span.log_probs or (math.nan,) * len(span.token_ids))]

    @property
    def weight_versions(self) -> list[int | None]:
        """Weight version of each token, None where no engine generated it. As long as ``token_ids``."""
        return [span.weight_version for span in self._spans for _ in span.token_ids]

    @property
    def kinds(self) -> list[SpanKind]:
        """Kind of each token. As long as ``token_ids``."""
        return [span.kind for span in self._spans for _ in span.token_ids]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first POLICY or TOOL token: system, user, assistant header, pre-filled tag."""
        length = 0
        for span in self._spans:
            if span.kind in (SpanKind.POLICY, SpanKind.TOOL):
                break
            length += len(span)
        return length

    @property
    def response_length(self) -> int:
        """Tokens after the prompt: policy, tool and separators."""
        return self._length - self.prompt_length

    @property
    def policy_length(self) -> int:
        """Tokens that carry loss."""
        return sum(len(span) for span in self._spans if span.kind is SpanKind.POLICY)

    def __len__(self) -> int:
        """Tokens of the whole sequence."""
        return self._length

    def __eq__(self, other: object) -> bool:
        """Same spans in the same order."""
        if not isinstance(other, TokenLedger):
            return NotImplemented
        return self._spans == other._spans and self.demonstration == other.demonstration

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        """Spans by kind and length."""
        return f"TokenLedger({', '.join(f'{span.kind.value}:{len(span)}' for span in self._spans)})"
