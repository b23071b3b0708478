"""One suite for five services in three forms: where they come from and how a test names them.

A test that takes `server` runs against services and forms named by its module:

- `SERVICES`, a tuple of names; all five when absent;
- `FORMS`, a tuple of forms; all three when absent.

Servers live for the session and are shared by tests, which pytest orders so that each is started once. A test that
ends its server takes `start_server` instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from rstar_protos.reward.v1 import reward_pb2
from rstar_protos.rollout.v1 import rollout_pb2
from rstar_protos.sampling.v1 import sampling_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import ClientSecurity, EmbeddedService, open_sync_channel
from rstar_protos.trainer.v1 import trainer_pb2

HERE = Path(__file__).parent
START_SECONDS = 120.0
TOKEN = "token-of-the-contract-tests"


@dataclass(frozen=True)
class Service:
    """A service under test: how it is started, and what it is called on the wire."""

    name: str
    full_name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    """Modules without which it cannot run here."""
    method: str
    """A unary method that is answered at once."""
    request: Message
    """What to ask it."""

    @property
    def command(self) -> list[str]:
        """How to start it, without the options that all services share."""
        return [sys.executable, *self.arguments]

    @property
    def path(self) -> str:
        """The cheap method on the wire."""
        return f"/{self.full_name}/{self.method}"

    @property
    def read_response(self) -> Callable[[bytes], Message]:
        """Reads what the cheap method answers."""
        method = descriptor_pool.Default().FindServiceByName(self.full_name).methods_by_name[self.method]
        parsed: Callable[[bytes], Message] = message_factory.GetMessageClass(method.output_type).FromString
        return parsed


SERVICES = {
    service.name: service
    for service in (
        Service(
            "sandbox",
            "rstar.sandbox.v1.SandboxService",
            ("-m", "rstar_sandbox", "serve", "--slots", "2", "--warm", ""),
            ("rstar_sandbox",),
            "Execute",
            sandbox_pb2.ExecuteRequest(code="6*7"),
        ),
        Service(
            "reward",
            "rstar.reward.v1.RewardService",
            ("-m", "rstar_reward", "serve", "--workers", "1"),
            ("rstar_reward",),
            "Score",
            reward_pb2.ScoreRequest(gold="2", response="\\boxed{2}"),
        ),
        Service(
            "rollout",
            "rstar.rollout.v1.RolloutService",
            (str(HERE / "hosts" / "rollout_host.py"),),
            ("rstar_rollout",),
            "GetEngineState",
            rollout_pb2.GetEngineStateRequest(),
        ),
        Service(
            "sampling",
            "rstar.sampling.v1.SamplingService",
            ("-m", "rstar_rollout", "serve-sampling"),
            ("rstar_rollout",),
            "ResampleGroup",
            sampling_pb2.ResampleGroupRequest(group_id="g", keep=1, rollouts=[{"trajectory_id": "t", "reward": 1.0}]),
        ),
        Service(
            "trainer",
            "rstar.trainer.v1.TrainerService",
            (str(HERE / "hosts" / "trainer_host.py"),),
            ("rstar_trainer",),
            "GetStatus",
            trainer_pb2.GetStatusRequest(),
        ),
    )
}
FORMS = ("embedded", "loopback", "mutual_tls")


@dataclass(frozen=True)
class Certificates:
    """Files of a throw-away CA: a server on 127.0.0.1, a client, and a client of another CA."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    stranger: Path
    stranger_key: Path
    token: Path

    @property
    def server_options(self) -> list[str]:
        """Mutual TLS and a token, as options of `serve`."""
        return [
            *("--tls-cert", str(self.server), "--tls-key", str(self.server_key)),
            *("--tls-client-ca", str(self.ca), "--token-file", str(self.token)),
        ]

    @property
    def client_security(self) -> ClientSecurity:
        """What a rightful client holds."""
        return ClientSecurity(self.ca, self.client, self.client_key, TOKEN)


@dataclass
class Server:
    """A running server and how to reach it."""

    service: Service
    form: str
    endpoint: str
    security: ClientSecurity
    metrics_url: str
    pid: Callable[[], int]
    process: subprocess.Popen[str] | None = None
    """None for an embedded server, whose child may be replaced by another."""

    def wait(self, seconds: float = 60.0) -> int:
        """Waits for the process to end and returns its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def channel(self, **changes: object) -> grpc.Channel:
        """A channel of a rightful client, or with other security, as `ClientSecurity` takes it."""
        values = {name: getattr(self.security, name) for name in ("ca", "certificate", "private_key", "token")}
        return open_sync_channel(self.endpoint, ClientSecurity(**{**values, **changes}))

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The token as call metadata, for `unbounded_channel`."""
        return [("authorization", f"Bearer {self.security.token}")] if self.security.token else []

    def unbounded_channel(self) -> grpc.Channel:
        """A channel without the bound on messages that our own clients keep to, and without the token."""
        options = [("grpc.max_send_message_length", -1)]
        target = self.endpoint.removeprefix("grpcs://").removeprefix("grpc://")
        if self.form == "mutual_tls":
            return grpc.secure_channel(target, self.security.credentials(), options)
        return grpc.insecure_channel(target, options)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a Prometheus metric that carry the labels."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        names = getattr(metafunc.module, "SERVICES", tuple(SERVICES))
        forms = getattr(metafunc.module, "FORMS", FORMS)
        pairs = [(name, form) for name in names for form in forms]
        params = [pytest.param(pair, id="-".join(pair)) for pair in pairs]
        metafunc.parametrize("server", params, indirect=True, scope="session")
    if "service" in metafunc.fixturenames:
        names = getattr(metafunc.module, "SERVICES", tuple(SERVICES))
        metafunc.parametrize("service", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest) -> Service:
    """One of the services."""
    return _available(request.param)


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Server]:
    """A running server of one service in one form, shared by tests."""
    name, form = request.param
    folder = tmp_path_factory.mktemp(f"{name}-{form}")
    options = ["--sandbox", request.getfixturevalue("tool_sandbox").endpoint] if name == "rollout" else []
    with running(_available(name), form, folder, certificates, options) as found:
        yield found


@pytest.fixture(scope="session")
def tool_sandbox(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    """The sandbox that rollouts run their tools in."""
    folder = tmp_path_factory.mktemp("tool-sandbox")
    with running(_available("sandbox"), "embedded", folder, certificates) as found:
        yield found


@pytest.fixture
def start_server(tmp_path: Path, certificates: Certificates) -> Iterator[Callable[[Service, str], Server]]:
    """Starts servers that belong to one test."""
    with contextlib.ExitStack() as stack:

        def start(service: Service, form: str = "loopback") -> Server:
            return stack.enter_context(running(service, form, tmp_path, certificates))

        yield start


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A channel of a rightful client."""
    with server.channel() as opened:
        yield opened


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA and its certificates, made by the openssl command."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "extensions").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:FALSE\n"
    )
    for authority, members in {"ca": ("server", "client"), "other": ("stranger",)}.items():
        _openssl(folder, "req", "-x509", *_new_key(authority), "-days", "2", "-out", f"{authority}.pem")
        signer = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        for member in members:
            _openssl(folder, "req", "-new", *_new_key(member), "-out", f"{member}.csr")
            signed = ("-in", f"{member}.csr", "-out", f"{member}.pem", "-days", "2", "-extfile", "extensions")
            _openssl(folder, "x509", "-req", *signer, *signed)
    files = [folder / f"{name}{end}" for name in ("server", "client", "stranger") for end in (".pem", ".key")]
    return Certificates(folder / "ca.pem", *files, folder / "token")


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Waits until a condition holds; fails saying what did not come true."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


@pytest.fixture(name="eventually", scope="session")
def _eventually() -> Callable[..., None]:
    return eventually


@contextlib.contextmanager
def running(
    service: Service, form: str, folder: Path, certificates: Certificates, more: Sequence[str] = ()
) -> Iterator[Server]:
    """Runs a server of a service in a form, with `more` options."""
    log, port = folder / "server.log", _free_port()
    options = [*more, "--metrics-port", str(port)]
    metrics_url = f"http://127.0.0.1:{port}/metrics"
    if form == "embedded":
        with EmbeddedService(service.name, [*service.command, *options], log_path=log) as child:
            yield Server(service, form, child.endpoint, ClientSecurity(), metrics_url, lambda: child.pid or 0)
        return
    if form == "mutual_tls":
        options += certificates.server_options
    security = certificates.client_security if form == "mutual_tls" else ClientSecurity()
    process, endpoint = launch(service, ["--listen", "127.0.0.1:0", *options], log)
    try:
        yield Server(service, form, endpoint, security, metrics_url, lambda: process.pid, process)
    finally:
        end(process)


def launch(service: Service, options: list[str], log: Path) -> tuple[subprocess.Popen[str], str]:
    """Starts `serve` and waits for its ready line."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*service.command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"{service.name} ended with {process.wait()} before it was ready:\n{log.read_text()[-2000:]}")
    return process, json.loads(line)["listening"]


def end(process: subprocess.Popen[str]) -> None:
    """Ends a server at once."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return


def _available(name: str) -> Service:
    service = SERVICES[name]
    for module in service.needs:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed here")
    return service


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _new_key(name: str) -> tuple[str, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    return (*curve, "-nodes", "-keyout", f"{name}.key", "-subj", f"/CN={name}")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"openssl {' '.join(arguments)}: {done.stderr}")
