"""The picture of a run can be drawn from whatever was logged."""

import struct
from pathlib import Path

import pytest

from rstar_trainer.curves import draw_curves
from rstar_trainer.metrics_log import Record

ENTRIES = [
    {"name": "base", "pass_at_1": 0.0, "ci95": [0.0, 0.06]},
    {"name": "sft", "pass_at_1": None, "ci95": None},
    {"name": "rl-1", "pass_at_1": 1.0, "ci95": [0.94, 1.0]},
]
STEPS = [
    Record(17 + n, "rl-1" if n < 3 else "rl-2", "rl", {"reward": n / 6, "response_tokens": 90.0, "groups_kept": 4})
    for n in range(6)
]


@pytest.mark.parametrize(("records", "entries"), [([], []), (STEPS, []), ([], ENTRIES), (STEPS, ENTRIES)])
def test_a_png_of_the_stated_size_is_written(
    tmp_path: Path, records: list[Record], entries: list[dict[str, object]]
) -> None:
    path = draw_curves(records, entries, tmp_path / "curves.png")
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1560, 840)


def test_the_picture_shows_the_numbers(tmp_path: Path) -> None:
    low = draw_curves(STEPS, ENTRIES, tmp_path / "low.png").read_bytes()
    other = [Record(r.global_step, r.stage, "rl", {**r.values, "reward": 1 - r.values["reward"]}) for r in STEPS]
    assert draw_curves(other, ENTRIES, tmp_path / "high.png").read_bytes() != low


def test_only_the_picture_is_left_behind(tmp_path: Path) -> None:
    draw_curves(STEPS, ENTRIES, tmp_path / "curves.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
