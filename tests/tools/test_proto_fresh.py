"""Comparing committed stubs with freshly generated ones."""

from proto_fresh import SOURCES, differences, stubs

FRESH = {"a_pb2.py": b"1", "b_pb2.py": b"2"}


def test_equal_stubs_have_no_difference() -> None:
    assert differences(dict(FRESH), FRESH) == []


def test_each_kind_of_difference_is_named() -> None:
    committed = {"a_pb2.py": b"other", "c_pb2.py": b"3"}
    assert differences(committed, FRESH) == ["a_pb2.py: out of date", "b_pb2.py: missing", "c_pb2.py: no source"]


def test_every_contract_has_its_three_stubs() -> None:
    contracts = list(SOURCES.glob("rstar_protos/*/v1/*.proto"))
    assert len(stubs(SOURCES)) == 3 * len(contracts)
