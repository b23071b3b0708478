"""A turn that comes in pieces from whatever generates it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rstar_rollout.engines.base import EngineError, FinishReason, GenerationRequest, GenerationResult

__all__ = ["CollectedTurn"]


class CollectedTurn:
    """What has come of one request.

    Args:
        request: what was asked for.
        sender: who generates, for messages.
        version: weights that it generates with.
    """

    def __init__(self, request: GenerationRequest, sender: str, version: int) -> None:
        self._request = request
        self._sender = sender
        self._version = version
        self._ids: list[int] = []
        self._log_probs: list[float] = []
        self._reason: FinishReason | None = None
        self.cached_tokens: int | None = None
        """See `GenerationResult.cached_tokens`; set by whoever is told."""

    @property
    def finished(self) -> bool:
        """The sender has said why it ended."""
        return self._reason is not None

    def add(self, ids: Sequence[int], log_probs: Sequence[float], reason: FinishReason | None) -> None:
        """Take over a piece.

        Args:
            ids: the next ids.
            log_probs: one for each of them, natural logarithms; not looked at if the request wants none.
            reason: why the turn ended with this piece; None: it goes on.

        Raises:
            EngineError: log-probabilities are wanted, and these are fewer or more than the ids.
        """
        if self._request.log_probs:
            if len(log_probs) != len(ids):
                raise EngineError(f"{self._sender} returned {len(log_probs)} log-probabilities for {len(ids)} tokens")
            self._log_probs += log_probs
        self._ids += ids
        self._reason = reason or self._reason

    def result(self) -> GenerationResult:
        """The turn as far as it has come; "aborted" if the sender had not finished it."""
        return GenerationResult(
            tuple(self._ids),
            tuple(self._log_probs),
            self._reason or "aborted",
            self._version,
            cached_tokens=self.cached_tokens,
        )
