"""The contracts as the tests look at them."""

import importlib

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

AREAS = ("common", "reward", "rollout", "sampling", "sandbox", "trainer")


def load(area: str) -> FileDescriptor:
    module = importlib.import_module(f"rstar_protos.{area}.v1.{area}_pb2")
    descriptor: FileDescriptor = module.DESCRIPTOR
    return descriptor


def messages(file: FileDescriptor) -> list[Descriptor]:
    """Messages of a file, nested ones included, map entries left out."""
    found, pending = [], list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        if not message.GetOptions().map_entry:
            found.append(message)
        pending += message.nested_types
    return found


def enums(file: FileDescriptor) -> list[EnumDescriptor]:
    """Enums of a file, nested ones included."""
    nested = [enum for message in messages(file) for enum in message.enum_types]
    return [*file.enum_types_by_name.values(), *nested]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `file`, `message`, `enum` or `service` runs for each one there is."""
    files = [load(area) for area in AREAS]
    choices = {
        "file": files,
        "message": [message for file in files for message in messages(file)],
        "enum": [enum for file in files for enum in enums(file)],
        "service": [service for file in files for service in file.services_by_name.values()],
    }
    for argument in metafunc.fixturenames:
        if argument in choices:
            found = choices[argument]
            metafunc.parametrize(argument, found, ids=[getattr(item, "full_name", item.name) for item in found])
