"""Conventions that every contract keeps."""

import re
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor, ServiceDescriptor

import rstar_protos

SOURCES = Path(rstar_protos.__file__).parent.parent
# A unit belongs in the name of a quantity that has one; these words alone would leave it open.
WITHOUT_UNIT = re.compile(r"(^|_)(time|timeout|duration|latency|size|memory|delay|ttl)$")


def test_packages_carry_area_and_version(file: FileDescriptor) -> None:
    area = Path(file.name).stem
    assert file.name == f"rstar_protos/{area}/v1/{area}.proto"
    assert file.package == f"rstar.{area}.v1"


def test_every_contract_says_what_it_is_for(file: FileDescriptor) -> None:
    before_package = (SOURCES / file.name).read_text(encoding="utf-8").partition("\npackage ")[0]
    assert "\n// " in before_package


def test_zero_of_an_enum_is_unspecified(enum: EnumDescriptor) -> None:
    assert enum.values_by_number[0].name.endswith("UNSPECIFIED")


def test_enum_values_carry_the_name_of_their_enum(enum: EnumDescriptor) -> None:
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper() + "_"
    assert [name for name in enum.values_by_name if not name.startswith(prefix)] == []


def test_enum_values_have_one_name_each(enum: EnumDescriptor) -> None:
    assert len(enum.values_by_number) == len(enum.values)


def test_fields_are_named_in_snake_case(message: Descriptor) -> None:
    assert [
        field.name for field in message.fields if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", field.name)
    ] == []


def test_quantities_name_their_unit(message: Descriptor) -> None:
    assert [field.name for field in message.fields if WITHOUT_UNIT.search(field.name)] == []


def test_identities_are_text(message: Descriptor) -> None:
    ids = [field for field in message.fields if field.name.endswith("_id")]
    assert [field.name for field in ids if field.type != field.TYPE_STRING] == []


def test_methods_take_a_request_of_their_own(service: ServiceDescriptor) -> None:
    # Shared messages are the item of a stream (Execute / ExecuteMany); an argument is never a bare payload.
    assert [method.name for method in service.methods if not method.input_type.name.endswith("Request")] == []
