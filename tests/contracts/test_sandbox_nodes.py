"""Dispatcher and worker nodes with TLS and tokens, and in network namespaces of their own where root allows."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid

import grpc
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import ClientSecurity, open_sync_channel

SERVE = (sys.executable, "-m", "rstar_sandbox", "serve")
SIZES = ("--slots", "2", "--warm", "")


@pytest.fixture
def start(tmp_path):
    """Starts a serve command and returns its process and ready line."""
    with contextlib.ExitStack() as stack:

        def run(*options, before=()):
            log = stack.enter_context((tmp_path / "log").open("a"))
            process = subprocess.Popen([*before, *SERVE, *options], stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            line = process.stdout.readline()
            assert line, (tmp_path / "log").read_text()
            return process, json.loads(line)

        yield run


def stub_of(stack, endpoint, security):
    return sandbox_pb2_grpc.SandboxServiceStub(stack.enter_context(open_sync_channel(endpoint, security)))


def workers(stub):
    return stub.GetCapacity(sandbox_pb2.GetCapacityRequest(), timeout=60).workers


def test_workers_attach_over_mutual_tls_with_tokens(start, certificates, eventually, tmp_path):
    worker_token = tmp_path / "worker-token"
    worker_token.write_text("for workers only\n")
    secrets = ("--worker-token-file", str(worker_token))
    _, ready = start(
        *("--role", "dispatcher", "--listen", "127.0.0.1:0", *certificates.server_options, *secrets),
    )
    own = (
        *("--dispatcher-ca", str(certificates.ca), "--dispatcher-cert", str(certificates.client)),
        *("--dispatcher-key", str(certificates.client_key), "--dispatcher-token-file", str(certificates.token)),
    )
    start("--role", "worker", "--dispatcher", ready["listening"], *own, *secrets, *SIZES)
    with contextlib.ExitStack() as stack:
        stub = stub_of(stack, ready["listening"], certificates.client_security)
        eventually(lambda: workers(stub) == 1, "the worker is attached")
        answer = stub.Execute(sandbox_pb2.ExecuteRequest(request_id=uuid.uuid4().hex, code="6*7"), timeout=60)
        assert (answer.status, answer.value) == (common_pb2.TOOL_STATUS_OK, "42")

        stranger = ClientSecurity(
            certificates.ca, certificates.client, certificates.client_key, token="no such token of ours"
        )
        with pytest.raises(grpc.RpcError) as refused:
            workers(stub_of(stack, ready["listening"], stranger))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--role", "worker"), "--dispatcher"),
        (("--role", "worker", "--dispatcher", "nonsense"), "nonsense"),
        (("--role", "worker", "--dispatcher", "grpc://127.0.0.1:1", "--http", "127.0.0.1:0"), "--http"),
        (("--dispatcher", "grpc://127.0.0.1:1"), "--dispatcher"),
        (("--role", "dispatcher", "--listen", "0.0.0.0:0"), "--listen"),
        (("--queue-limit", "-1"), "--queue-limit"),
        (("--require-level", "no such level"), "--require-level"),
    ],
)
def test_roles_that_cannot_be_served_are_refused_in_one_line(options, named):
    done = subprocess.run([*SERVE, *SIZES, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr


class Networks:
    """Network namespaces that reach this one by a pair of virtual interfaces each."""

    def __init__(self, stack, count):
        self.names = [f"rstar-{os.getpid()}-{number}" for number in range(count)]
        for number, name in enumerate(self.names):
            self._ip("netns", "add", name)
            stack.callback(self._ip, "netns", "delete", name)
            here, there = f"rs{os.getpid() % 100000}h{number}", f"rs{os.getpid() % 100000}t{number}"
            self._ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            self._ip("addr", "add", f"{self.address(number)}/30", "dev", here)
            self._ip("link", "set", here, "up")
            self._ip("-n", name, "addr", "add", f"{self.address(number, 2)}/30", "dev", there)
            for link in ("lo", there):
                self._ip("-n", name, "link", "set", link, "up")

    @staticmethod
    def address(number, end=1):
        """Of the end here (1) or there (2); a range that is reserved for tests of networks."""
        return f"198.18.{number}.{end}"

    @staticmethod
    def _ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


def networks(stack):
    """Two networks, or None where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return None
    try:
        return Networks(stack, 2)
    except subprocess.CalledProcessError:
        return None


def certificate_for(folder, addresses):
    """A certificate of its own for these addresses, and its key."""
    names = ",".join(f"IP:{address}" for address in addresses)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=dispatcher"),
            *("-addext", f"subjectAltName={names}", "-keyout", "own.key", "-out", "own.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "own.pem", folder / "own.key"


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_two_nodes_in_networks_of_their_own_serve_all_calls_when_one_is_killed_half_way(start, tmp_path, eventually):
    calls = int(os.environ.get("RSTAR_TEST_NODE_CALLS", "5000"))
    with contextlib.ExitStack() as stack:
        found = networks(stack)
        addresses = ["127.0.0.1", *(Networks.address(number) for number in range(2 if found else 0))]
        certificate, key = certificate_for(tmp_path, addresses)
        token = tmp_path / "token"
        token.write_text("of this test\n")
        listen = "0.0.0.0:0" if found else "127.0.0.1:0"
        secured = ("--tls-cert", str(certificate), "--tls-key", str(key), "--token-file", str(token))
        _, ready = start("--role", "dispatcher", "--listen", listen, *secured)
        port = ready["listening"].rpartition(":")[2]
        nodes = []
        for number in range(2):
            reached = Networks.address(number) if found else "127.0.0.1"
            process, _ = start(
                *("--role", "worker", "--dispatcher", f"grpcs://{reached}:{port}", "--name", f"node-{number}"),
                *("--dispatcher-ca", str(certificate), "--dispatcher-token-file", str(token), *SIZES),
                before=("ip", "netns", "exec", found.names[number]) if found else (),
            )
            nodes.append(process)
        security = ClientSecurity(ca=certificate, token="of this test")
        stub = stub_of(stack, f"grpcs://127.0.0.1:{port}", security)
        eventually(lambda: workers(stub) == 2, "both nodes are attached", 120)

        prefix = uuid.uuid4().hex

        def requests():
            for number in range(calls):
                yield sandbox_pb2.ExecuteRequest(request_id=f"{prefix}-{number}", code=f"print({number} * 7919)")

        answers = {}
        for answer in stub.ExecuteMany(requests(), timeout=800):
            assert answer.request_id not in answers
            answers[answer.request_id] = (answer.status, answer.stdout)
            if len(answers) == calls // 2:
                nodes[0].kill()
        assert workers(stub) == 1
        assert answers == {
            f"{prefix}-{number}": (common_pb2.TOOL_STATUS_OK, f"{number * 7919}\n".encode()) for number in range(calls)
        }
