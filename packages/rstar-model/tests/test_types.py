from __future__ import annotations

from rstar_model import types
from rstar_protos import vocabulary


def test_the_words_are_those_of_the_contracts() -> None:
    assert all(getattr(types, name) is getattr(vocabulary, name) for name in types.__all__)
