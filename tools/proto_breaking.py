"""Does a change of the .proto files break those who use the last released ones?

Run: `python tools/proto_breaking.py` compares the working tree with the last tag `rstar-protos-v*` and exits 1
if something that could be sent or called then cannot be now: removed files, messages, fields, enum values,
services and methods; fields with another number, type, cardinality or oneof; methods with other messages or
streaming. Additions are fine. A removed field is fine where its number and its name are reserved. Names count
although the wire has none: generated code and JSON use them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from workspace import ROOT

TAGS = "rstar-protos-v*"
_SOURCES = "protos/src"


def breaking_changes(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """One line for each way in which `new` breaks a user of `old`."""
    old_names, new_names = _definitions(old), _definitions(new)
    found: list[str] = []
    for name, before in old_names.items():
        after = new_names.get(name)
        if after is None or type(after) is not type(before):
            found.append(f"{name}: {_KIND[type(before)]} removed")
        elif isinstance(before, DescriptorProto) and isinstance(after, DescriptorProto):
            found += _message_changes(name, before, after)
        elif isinstance(before, EnumDescriptorProto) and isinstance(after, EnumDescriptorProto):
            found += _enum_changes(name, before, after)
        elif isinstance(before, ServiceDescriptorProto) and isinstance(after, ServiceDescriptorProto):
            found += _service_changes(name, before, after)
    return found


_Definition = DescriptorProto | EnumDescriptorProto | ServiceDescriptorProto
_KIND = {DescriptorProto: "message", EnumDescriptorProto: "enum", ServiceDescriptorProto: "service"}


def _definitions(files: FileDescriptorSet) -> dict[str, _Definition]:
    """Messages, enums and services by full name, nested ones included."""
    found: dict[str, _Definition] = {}

    def add_messages(prefix: str, messages: Iterable[DescriptorProto]) -> None:
        for message in messages:
            name = f"{prefix}.{message.name}"
            found[name] = message
            found.update({f"{name}.{enum.name}": enum for enum in message.enum_type})
            add_messages(name, message.nested_type)

    for file in files.file:
        add_messages(file.package, file.message_type)
        found.update({f"{file.package}.{enum.name}": enum for enum in file.enum_type})
        found.update({f"{file.package}.{service.name}": service for service in file.service})
    return found


def _message_changes(name: str, before: DescriptorProto, after: DescriptorProto) -> Iterator[str]:
    by_name = {field.name: field for field in after.field}
    for field in before.field:
        now = by_name.get(field.name)
        if now is None:
            if not _is_reserved(field, after):
                yield f"{name}.{field.name}: field {field.number} removed without reserving number and name"
            continue
        if now.number != field.number:
            yield f"{name}.{field.name}: number {field.number} became {now.number}"
        if (now.type, now.type_name) != (field.type, field.type_name):
            yield f"{name}.{field.name}: type {_type(field)} became {_type(now)}"
        if now.label != field.label or now.proto3_optional != field.proto3_optional:
            yield f"{name}.{field.name}: repeated or optional was changed"
        if _oneof(before, field) != _oneof(after, now):
            yield f"{name}.{field.name}: moved into or out of a oneof"


def _is_reserved(field: FieldDescriptorProto, message: DescriptorProto) -> bool:
    # In descriptors the end of a reserved range of a message is exclusive.
    number = any(span.start <= field.number < span.end for span in message.reserved_range)
    return number and field.name in message.reserved_name


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type)[5:].lower()


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str | None:
    # `optional` in proto3 makes a oneof of one field; that is reported as a change of cardinality.
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    return message.oneof_decl[field.oneof_index].name


def _enum_changes(name: str, before: EnumDescriptorProto, after: EnumDescriptorProto) -> Iterator[str]:
    numbers = {value.name: value.number for value in after.value}
    for value in before.value:
        if value.name not in numbers:
            yield f"{name}.{value.name}: enum value {value.number} removed"
        elif numbers[value.name] != value.number:
            yield f"{name}.{value.name}: number {value.number} became {numbers[value.name]}"


def _service_changes(name: str, before: ServiceDescriptorProto, after: ServiceDescriptorProto) -> Iterator[str]:
    methods = {method.name: method for method in after.method}
    for method in before.method:
        now = methods.get(method.name)
        if now is None:
            yield f"{name}.{method.name}: method removed"
            continue
        if (now.input_type, now.output_type) != (method.input_type, method.output_type):
            yield f"{name}.{method.name}: request or response message was changed"
        if (now.client_streaming, now.server_streaming) != (method.client_streaming, method.server_streaming):
            yield f"{name}.{method.name}: streaming was changed"


def describe(sources: Path) -> FileDescriptorSet:
    """Descriptors of every .proto below `sources/rstar_protos`."""
    names = sorted(path.relative_to(sources).as_posix() for path in sources.glob("rstar_protos/*/v*/*.proto"))
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "descriptors.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", f"--descriptor_set_out={output}", *names]
        subprocess.run(command, cwd=sources, check=True)
        return FileDescriptorSet.FromString(output.read_bytes())


def last_tag() -> str | None:
    """Newest tag of the contracts by version; None before the first release."""
    command = ["git", "tag", "--list", TAGS, "--sort=-version:refname"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return listing[0] if listing else None


def main() -> int:
    """Compare the working tree with the last tag."""
    tag = last_tag()
    if tag is None:
        print(f"no tag {TAGS} yet: nothing released that a change could break")
        return 0
    archive = subprocess.run(["git", "archive", tag, _SOURCES], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(temporary, filter="data")
        found = breaking_changes(describe(Path(temporary) / _SOURCES), describe(ROOT / _SOURCES))
    print("\n".join(found) if found else f"compatible with {tag}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
