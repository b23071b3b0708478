from __future__ import annotations

import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.vocabulary import EndReason, SpanKind, ToolStatus

ENUMS = [
    (SpanKind, common_pb2.SpanKind),
    (ToolStatus, common_pb2.ToolStatus),
    (EndReason, common_pb2.EndReason),
]


@pytest.mark.parametrize(("ours", "wire"), ENUMS)
def test_every_wire_value_but_unspecified_has_a_name_here(ours, wire) -> None:
    assert {value.to_proto() for value in ours} == set(wire.values()) - {0}


@pytest.mark.parametrize("ours", [pair[0] for pair in ENUMS])
def test_wire_numbers_lead_back(ours) -> None:
    assert all(ours.from_proto(value.to_proto()) is value for value in ours)


@pytest.mark.parametrize("ours", [pair[0] for pair in ENUMS])
@pytest.mark.parametrize("number", [0, 99])
def test_unset_and_unknown_numbers_are_refused(ours, number: int) -> None:
    with pytest.raises(ValueError, match=r"unset|no name|99"):
        ours.from_proto(number)


def test_infrastructure_is_no_failure_of_the_policy() -> None:
    assert {status for status in ToolStatus if not status.is_failure} == {ToolStatus.OK, ToolStatus.UNAVAILABLE}
