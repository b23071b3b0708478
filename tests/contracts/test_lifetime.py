"""How services start and end: drain on SIGTERM, restart of embedded ones, and refusals to start."""

import os
import queue
import signal
import socket
import subprocess

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc


def held_call(server, channel):
    """A call that is under way on the server and whose request is sent later, by the function that comes with it.

    On the wire a unary call is a stream of one message, so its start and its message can be sent apart.
    """
    service, messages = server.service, queue.Queue()
    call = channel.stream_unary(service.path, response_deserializer=service.read_response)
    future = call.future(iter(messages.get, None), timeout=60)
    # Once a later call on this connection is answered, the server has seen the earlier one.
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)

    def finish():
        messages.put(service.request.SerializeToString())
        messages.put(None)
        return future.result(timeout=60)

    return finish


@pytest.mark.parametrize("form", ["embedded", "loopback", "mutual_tls"])
def test_sigterm_lets_running_calls_finish_and_takes_no_new_ones(service, form, start_server, eventually):
    server = start_server(service, form)
    first = server.pid()
    with server.channel() as channel:
        finish = held_call(server, channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        os.kill(first, signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert finish() is not None
    if form == "embedded":
        eventually(lambda: server.pid() not in (0, first), "a new child was started")
        with server.channel() as channel:
            request = health_pb2.HealthCheckRequest()
            health_pb2_grpc.HealthStub(channel).Check(request, timeout=60, wait_for_ready=True)
    else:
        assert server.wait() == 0


def refused(service, *options):
    """The one error line of a server that must not start."""
    command = [*service.command, *map(str, options)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert done.stdout == ""
    return lines[0]


def test_address_of_other_machines_without_tls_and_token_is_refused(service):
    assert "--token-file" in refused(service, "--listen", "0.0.0.0:0")


def test_address_of_other_machines_needs_both_tls_and_token(service, certificates):
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    assert "--token-file" in refused(service, "--listen", "[::]:0", *tls)
    assert "--tls-cert" in refused(service, "--listen", "0.0.0.0:0", "--token-file", certificates.token)


def test_port_in_use_is_refused(service):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(service, "--listen", address)


def test_socket_in_use_is_refused(service, tmp_path):
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "taken.sock"))
        taken.listen()
        assert "taken.sock" in refused(service, "--listen", f"unix:{tmp_path}/taken.sock")
