"""What the zygote does so that its children start with settled code, and what must be as before when it is done."""

from __future__ import annotations

import linecache
import subprocess
import sys
import threading

import pytest

from rstar_sandbox import hot
from rstar_sandbox.rehearsal import rehearse


def test_a_rehearsal_leaves_the_interpreter_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    before = (sys.modules["__main__"], sys.stdout, sys.stderr, threading.active_count(), set(linecache.cache))
    rehearse(())
    assert (sys.modules["__main__"], sys.stdout, sys.stderr, threading.active_count(), set(linecache.cache)) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(hot.EXTENSION is None, reason="immortal objects need the C extension")
def test_immortal_objects_live_on_and_are_the_same() -> None:
    # In a process of its own: nothing of it is ever freed again.
    program = """
import gc, sys
from rstar_sandbox import hot
kept, changing = [object(), "text" * 9, (1.5, b"b")], {"a": [1]}
ids = [id(each) for each in kept]
made = hot.make_immortal()
gc.collect()
count = sys.getrefcount(kept[0])
assert (made > 10_000) == (count > 2**31 - 2) == (sys.version_info[:2] in ((3, 12), (3, 13))), (made, count)
for _ in range(1000):
    copies = [list(kept), dict(changing)]
    changing["a"].append(2)
    del copies
assert [id(each) for each in kept] == ids and kept[1] == "text" * 9 and kept[2] == (1.5, b"b")
assert len(changing["a"]) == 1001 and changing.pop("a")[0] == 1 and not changing
assert hot.make_immortal() < made or not made
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("alive\n", "")
