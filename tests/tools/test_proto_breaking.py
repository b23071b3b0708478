"""Which changes of contracts break their users."""

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from proto_breaking import breaking_changes

RELEASED = """
file {
  name: "thing.proto" package: "rstar.thing.v1" syntax: "proto3"
  message_type {
    name: "Request"
    field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "tags" number: 2 label: LABEL_REPEATED type: TYPE_STRING }
    field { name: "kind" number: 3 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".rstar.thing.v1.Kind" }
    field { name: "file" number: 4 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
    oneof_decl { name: "source" }
    nested_type { name: "Inner" field { name: "x" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 } }
  }
  message_type { name: "Response" }
  enum_type { name: "Kind" value { name: "KIND_UNSPECIFIED" number: 0 } value { name: "KIND_A" number: 1 } }
  service {
    name: "Thing"
    method { name: "Do" input_type: ".rstar.thing.v1.Request" output_type: ".rstar.thing.v1.Response" }
    method {
      name: "Watch" input_type: ".rstar.thing.v1.Request" output_type: ".rstar.thing.v1.Response"
      server_streaming: true
    }
  }
}
"""
ID = 'field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }'
DO = 'method { name: "Do" input_type: ".rstar.thing.v1.Request" output_type: ".rstar.thing.v1.Response" }'


def changes(*replacements: tuple[str, str]) -> list[str]:
    text = RELEASED
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return breaking_changes(
        text_format.Parse(RELEASED, FileDescriptorSet()), text_format.Parse(text, FileDescriptorSet())
    )


def test_no_change_breaks_nothing() -> None:
    assert changes() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ID, ID + ' field { name: "more" number: 9 label: LABEL_OPTIONAL type: TYPE_STRING }'),
        ('value { name: "KIND_A" number: 1 }', 'value { name: "KIND_A" number: 1 } value { name: "B" number: 2 }'),
        (DO, DO + DO.replace('"Do"', '"Undo"')),
        ('message_type { name: "Response" }', 'message_type { name: "Response" } message_type { name: "New" }'),
    ],
)
def test_additions_break_nothing(old: str, new: str) -> None:
    assert changes((old, new)) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (ID, "", "Request.id: field 1 removed without reserving number and name"),
        ('"id" number: 1', '"id" number: 8', "Request.id: number 1 became 8"),
        (ID, ID.replace("TYPE_STRING", "TYPE_BYTES"), "Request.id: type string became bytes"),
        ("LABEL_REPEATED", "LABEL_OPTIONAL", "Request.tags: repeated or optional was changed"),
        (" oneof_index: 0", "", "Request.file: moved into or out of a oneof"),
        ('"rstar.thing.v1"', '"rstar.thing.v2"', "rstar.thing.v1.Request: message removed"),
        ('name: "Inner"', 'name: "Outer"', "Request.Inner: message removed"),
        ('value { name: "KIND_A" number: 1 }', "", "Kind.KIND_A: enum value 1 removed"),
        ('"KIND_A" number: 1', '"KIND_A" number: 2', "Kind.KIND_A: number 1 became 2"),
        (DO, "", "Thing.Do: method removed"),
        ("server_streaming: true", "", "Thing.Watch: streaming was changed"),
        (DO, DO.replace(".Response", ".Request"), "Thing.Do: request or response message was changed"),
    ],
)
def test_what_users_rely_on_may_not_change(old: str, new: str, expected: str) -> None:
    assert any(line.endswith(expected) for line in changes((old, new))), changes((old, new))


def test_a_removed_field_is_fine_where_number_and_name_are_reserved() -> None:
    reserved = 'reserved_range { start: 1 end: 2 } reserved_name: "id"'
    assert changes((ID, reserved)) == []


def test_reserving_the_number_alone_is_not_enough() -> None:
    assert len(changes((ID, "reserved_range { start: 1 end: 2 }"))) == 1


def test_becoming_optional_is_a_change_of_cardinality_only() -> None:
    optional = ID.replace("TYPE_STRING", "TYPE_STRING oneof_index: 1 proto3_optional: true")
    found = changes(
        (ID, optional), ('oneof_decl { name: "source" }', 'oneof_decl { name: "source" } oneof_decl { name: "_id" }')
    )
    assert found == ["rstar.thing.v1.Request.id: repeated or optional was changed"]
