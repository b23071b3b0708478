"""What a pool has to know of weights that a sender moves into its engines by itself.

A sender meets the workers of all engines once, in one group with a rank for each, and from then on sends to all of
them at the same time. An engine that comes later is not of that group, and one that is gone leaves the others waiting.
So the pool knows whom the sender has met, and lets nobody wait for an update that cannot arrive.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rstar_rollout.engines.base import Engine, WeightSource, WeightUpdateError

__all__ = ["SenderGroup"]


class SenderGroup:
    """The engines that a sender of weights has met; see the module text."""

    def __init__(self) -> None:
        self._met: list[Engine] = []

    @staticmethod
    def begins(source: WeightSource) -> bool:
        """Whether this is a sender's first call of an update, in which it says how many workers it counts on.

        Raises:
            WeightUpdateError: settings that cannot be read.
        """
        return "workers" in _settings(source)

    async def sources(self, source: WeightSource, engines: Sequence[Engine]) -> list[WeightSource]:
        """What each engine is told in a sender's first call: ranks of its workers follow those of engines before it.

        Args:
            source: of which `begins` is true.
            engines: all that could receive something now.

        Raises:
            WeightUpdateError: the sender counts on other workers than there are, or has met other engines.
        """
        settings = _settings(source)
        counts = [(await engine.state()).workers for engine in engines]
        expected = settings["workers"]
        if expected != sum(counts):
            raise WeightUpdateError(f"the sender counts on {expected} workers, the engines have {sum(counts)}")
        if "init" not in settings:
            if [*map(id, engines)] != [*map(id, self._met)]:
                raise WeightUpdateError("engines have come or gone since the sender met them: it has to meet them anew")
            return [source] * len(engines)
        self._met = list(engines)
        return [replace(source, settings_json=_placed(settings, sum(counts[:n]))) for n in range(len(counts))]


def _settings(source: WeightSource) -> dict[str, Any]:
    try:
        settings = json.loads(source.settings_json or "{}")
    except ValueError as error:
        raise WeightUpdateError(f"settings of the transfer are no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise WeightUpdateError("settings of the transfer are no JSON object")
    return settings


def _placed(settings: dict[str, Any], workers_before: int) -> str:
    init = dict(settings["init"])
    if "rank_offset" in init:
        init["rank_offset"] += workers_before
    return json.dumps({**settings, "init": init})
