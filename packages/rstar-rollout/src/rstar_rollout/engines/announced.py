"""The weight update that an engine has begun and not yet committed."""

from __future__ import annotations

from typing import Generic, TypeVar

from rstar_rollout.engines.base import WeightUpdateError

__all__ = ["AnnouncedUpdate"]

Source = TypeVar("Source")


class AnnouncedUpdate(Generic[Source]):
    """At most one: what begins later takes its place."""

    def __init__(self) -> None:
        self._update: tuple[int, Source] | None = None

    @property
    def version(self) -> int | None:
        """Of the update that has begun; None: there is none."""
        return self._update[0] if self._update is not None else None

    def begin(self, version: int, source: Source) -> None:
        """An update has begun; ``source`` is where its weights will come from."""
        self._update = version, source

    def take(self, version: int) -> Source:
        """Its source, for the commit; there is none under way from now on.

        Raises:
            WeightUpdateError: another update has begun, or none; that stays as it is.
        """
        if self._update is None or self._update[0] != version:
            begun = "none" if self._update is None else self._update[0]
            raise WeightUpdateError(f"commit of version {version}, but the update begun is {begun}")
        source, self._update = self._update[1], None
        return source

    def drop(self) -> None:
        """It has failed."""
        self._update = None
