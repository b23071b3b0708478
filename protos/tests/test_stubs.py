"""Generated stubs: importable, complete, and true to the wire."""

import importlib
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

import rstar_protos
from rstar_protos.rollout.v1 import rollout_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2

_WHOLE = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    # Short of the largest: JSON rounds it up, out of range.
    FieldDescriptor.TYPE_FLOAT: st.floats(-(2.0**100), 2.0**100, width=32),
    FieldDescriptor.TYPE_STRING: st.text(),
    FieldDescriptor.TYPE_BYTES: st.binary(),
}


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Any single value that a field can hold."""
    if field.type == field.TYPE_ENUM:
        return st.sampled_from(list(field.enum_type.values_by_number))
    if field.type == field.TYPE_MESSAGE:
        return filled(field.message_type)
    return _WHOLE[field.type]


@st.composite
def filled(draw: st.DrawFn, descriptor: Descriptor) -> Message:
    """Messages of a type with any subset of their fields set."""
    message: Message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        held = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            held.update(draw(st.dictionaries(values(entry["key"]), values(entry["value"]), max_size=2)))
        elif hasattr(held, "extend"):
            held.extend(draw(st.lists(values(field), max_size=2)))
        elif field.message_type:
            held.CopyFrom(draw(values(field)))
        else:
            setattr(message, field.name, draw(values(field)))
    return message


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_message_survives_the_wire_and_json(message: Descriptor, data: st.DataObject) -> None:
    sent = data.draw(filled(message))
    kind = type(sent)
    assert kind.FromString(sent.SerializeToString()) == sent
    assert json_format.Parse(json_format.MessageToJson(sent), kind()) == sent


def test_every_service_has_stub_and_servicer(service: ServiceDescriptor) -> None:
    module = importlib.import_module(service.file.name.replace("/", ".").replace(".proto", "_pb2_grpc"))
    stub = getattr(module, f"{service.name}Stub")(grpc.insecure_channel("unix:/nowhere"))
    servicer = getattr(module, f"{service.name}Servicer")
    assert callable(getattr(module, f"add_{service.name}Servicer_to_server"))
    for method in service.methods:
        assert callable(getattr(stub, method.name))
        assert callable(getattr(servicer, method.name))


def test_the_five_services_and_the_sandbox_workers_are_declared() -> None:
    areas = ("sandbox", "reward", "rollout", "sampling", "trainer")
    declared = [
        name
        for area in areas
        for name in importlib.import_module(f"rstar_protos.{area}.v1.{area}_pb2").DESCRIPTOR.services_by_name
    ]
    services = [f"{area.capitalize()}Service" for area in areas]
    assert declared == [services[0], "SandboxWorkerService", *services[1:]]


def test_the_contract_file_and_its_typing_are_shipped_beside_the_stubs(file: FileDescriptor) -> None:
    folder = Path(rstar_protos.__file__).parent.parent
    stem = file.name.removesuffix(".proto")
    assert [kind for kind in (".proto", "_pb2.pyi", "_pb2_grpc.py") if not (folder / (stem + kind)).is_file()] == []


def test_absence_differs_from_zero_where_it_matters() -> None:
    assert not sandbox_pb2.ExecuteResponse().HasField("exit_code")
    again = sandbox_pb2.ExecuteResponse.FromString(sandbox_pb2.ExecuteResponse(exit_code=0).SerializeToString())
    assert again.HasField("exit_code")


def test_fields_of_a_newer_contract_are_kept_by_an_older_reader() -> None:
    # A dispatcher that passes messages on must not drop what it does not know.
    extended = descriptor_pb2.UninterpretedOption(identifier_value="x", positive_int_value=7, string_value=b"new")
    known = rollout_pb2.PauseRequest.FromString(extended.SerializeToString())
    assert descriptor_pb2.UninterpretedOption.FromString(known.SerializeToString()) == extended


def test_a_text_field_refuses_bytes_that_are_not_utf8() -> None:
    with pytest.raises(DecodeError):
        sandbox_pb2.ExecuteRequest.FromString(b"\x12\x02\xff\xfe")  # field 2, code


def test_program_output_may_hold_any_bytes() -> None:
    sent = sandbox_pb2.ExecuteResponse(stdout=b"\xff\xfe\x00")
    assert sandbox_pb2.ExecuteResponse.FromString(sent.SerializeToString()).stdout == b"\xff\xfe\x00"


def test_json_uses_the_names_of_enum_values() -> None:
    response = sandbox_pb2.ExecuteResponse(status=1)
    assert json.loads(json_format.MessageToJson(response)) == {"status": "TOOL_STATUS_OK"}
