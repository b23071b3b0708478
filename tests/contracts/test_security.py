"""Mutual TLS and tokens: who is let in, and that nobody else is."""

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rstar_protos.service import ClientSecurity, open_sync_channel

FORMS = ("mutual_tls",)


def refusal(channel, call):
    """The status with which a call is refused."""
    with channel, pytest.raises(grpc.RpcError) as caught:
        call(channel)
    return caught.value.code()


def check(channel):
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)


def watch(channel):
    list(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10))


def reflect(channel):
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=10))


@pytest.mark.parametrize("token", [None, "wrong", "token-of-the-contract-test", "token-of-the-contract-testss"])
@pytest.mark.parametrize("call", [check, watch, reflect])
def test_missing_or_wrong_token_is_unauthenticated(server, token, call):
    assert refusal(server.channel(token=token), call) == grpc.StatusCode.UNAUTHENTICATED


def test_own_methods_need_the_token_too(server):
    described = descriptor_pool.Default().FindServiceByName(server.service.full_name)
    for method in described.methods:
        kind = "_".join(
            "stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)
        )
        request = iter([b""]) if method.client_streaming else b""

        def call(channel, name=method.name, kind=kind, request=request):
            answer = getattr(channel, kind)(f"/{server.service.full_name}/{name}")(request, timeout=10)
            return list(answer) if kind.endswith("stream") else answer

        assert (method.name, refusal(server.channel(token=None), call)) == (
            method.name,
            grpc.StatusCode.UNAUTHENTICATED,
        )


def test_client_without_certificate_is_refused(server):
    assert refusal(server.channel(certificate=None, private_key=None), check) == grpc.StatusCode.UNAVAILABLE


def test_client_of_another_authority_is_refused(server, certificates):
    stranger = server.channel(certificate=certificates.stranger, private_key=certificates.stranger_key)
    assert refusal(stranger, check) == grpc.StatusCode.UNAVAILABLE


def test_client_without_tls_is_refused(server):
    plain = open_sync_channel(
        server.endpoint.replace("grpcs://", "grpc://"), ClientSecurity(token=server.security.token)
    )
    assert refusal(plain, check) == grpc.StatusCode.UNAVAILABLE


def test_server_the_client_does_not_trust_is_refused_by_the_client(server, certificates):
    assert refusal(server.channel(ca=certificates.stranger), check) == grpc.StatusCode.UNAVAILABLE
