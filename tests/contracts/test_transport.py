"""What every service does the same way, in every form."""

import time

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVING = health_pb2.HealthCheckResponse.SERVING
WATCH = "/grpc.health.v1.Health/Watch"


def check_health(channel, service=""):
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30).status


def cheap_call(server, channel, timeout=60):
    service = server.service
    call = channel.unary_unary(service.path, response_deserializer=service.read_response)
    return call(service.request.SerializeToString(), timeout=timeout)


def test_health_says_serving_for_the_server_and_the_service(server, channel):
    assert check_health(channel) == SERVING
    assert check_health(channel, server.service.full_name) == SERVING


def test_reflection_lists_the_service_and_describes_its_methods(server, channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert server.service.full_name in database.get_services()
    described = descriptor_pool.DescriptorPool(database).FindServiceByName(server.service.full_name)
    ours = descriptor_pool.Default().FindServiceByName(server.service.full_name)
    assert [method.name for method in described.methods] == [method.name for method in ours.methods]


def test_cheap_call_is_answered(server, channel):
    assert cheap_call(server, channel).ByteSize() > 0


def test_unknown_method_is_unimplemented(server, channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{server.service.full_name}/NoSuchMethod")(b"", timeout=30)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_deadline_ends_a_call_on_both_sides(server, channel, eventually):
    started = time.monotonic()
    stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=0.5)
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 10
    eventually(lambda: server.metric("rstar_grpc_calls_in_progress", method=WATCH) == 0, "the call left the server")


def test_cancelled_call_leaves_the_server(server, channel, eventually):
    stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
    next(stream)
    assert server.metric("rstar_grpc_calls_in_progress", method=WATCH) == 1
    stream.cancel()
    eventually(lambda: server.metric("rstar_grpc_calls_in_progress", method=WATCH) == 0, "the call left the server")


def test_message_above_the_bound_is_refused_and_the_service_goes_on(server, channel):
    with server.unbounded_channel() as unbounded, pytest.raises(grpc.RpcError) as caught:
        unbounded.unary_unary(server.service.path)(bytes(64 * 1024 * 1024 + 1), timeout=60, metadata=server.metadata)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert check_health(channel) == SERVING


def test_bytes_that_are_no_message_are_refused_and_the_service_goes_on(server, channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(server.service.path)(b"\xff" * 100, timeout=30)
    # grpcio for Python says UNKNOWN where the protocol says INTERNAL.
    assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    assert check_health(channel) == SERVING


def test_calls_are_counted_by_method_and_code(server, channel):
    before = server.metric("rstar_grpc_calls_total", method=server.service.path, code="OK")
    cheap_call(server, channel)
    assert server.metric("rstar_grpc_calls_total", method=server.service.path, code="OK") == before + 1
