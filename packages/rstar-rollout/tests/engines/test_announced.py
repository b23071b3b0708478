"""The update that has begun: taken once, by its own version, and replaced by a later one."""

from __future__ import annotations

import pytest

from rstar_rollout.engines.announced import AnnouncedUpdate
from rstar_rollout.engines.base import WeightUpdateError


def test_an_update_is_taken_once():
    announced: AnnouncedUpdate[str] = AnnouncedUpdate()
    announced.begin(3, "folder")
    assert announced.take(3) == "folder"
    with pytest.raises(WeightUpdateError, match="begun is none"):
        announced.take(3)


def test_another_version_is_refused_and_the_update_stays():
    announced: AnnouncedUpdate[str] = AnnouncedUpdate()
    announced.begin(3, "folder")
    with pytest.raises(WeightUpdateError, match="commit of version 4, but the update begun is 3"):
        announced.take(4)
    assert announced.version == 3


def test_a_later_update_takes_the_place_of_an_earlier_one():
    announced: AnnouncedUpdate[str] = AnnouncedUpdate()
    announced.begin(3, "folder")
    announced.begin(4, "another")
    assert announced.take(4) == "another"


def test_one_that_has_failed_cannot_be_taken():
    announced: AnnouncedUpdate[str] = AnnouncedUpdate()
    announced.begin(3, "folder")
    announced.drop()
    assert announced.version is None
