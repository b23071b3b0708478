"""The same run against services that were started apart: on plain loopback, and with mutual TLS and a token."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_processes import children_of
from e2e_runs import stop_process

ROLLOUT_HOST = str(Path(__file__).parent / "hosts" / "rollout.py")
COMMANDS = {
    "sandbox": ("-m", "rstar_sandbox", "serve"),
    "reward": ("-m", "rstar_reward", "serve", "--workers", "1"),
    "sampling": ("-m", "rstar_rollout", "serve-sampling"),
}


def server_options(certificates):
    return [
        *("--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key"),
        *("--tls-client-ca", certificates / "ca.pem", "--token-file", certificates / "token"),
    ]


def client_settings(certificates):
    files = {"ca": "ca.pem", "certificate": "client.pem", "private_key": "client.key", "token_file": "token"}
    return {field: certificates / name for field, name in files.items()}


def sandbox_options(certificates):
    """How the rollout service reaches a secured sandbox."""
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key", "token-file": "token"}
    return [part for field, name in files.items() for part in (f"--sandbox-{field}", certificates / name)]


@contextlib.contextmanager
def serving(workplace, *arguments):
    """A server on a free port of the loopback; yields its endpoint."""
    command = [sys.executable, *map(str, arguments), "--listen", "127.0.0.1:0"]
    with (workplace.folder / "servers.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=workplace.env()
        )
    try:
        line = process.stdout.readline()
        assert line, (workplace.folder / "servers.log").read_text()[-2000:]
        yield json.loads(line)["listening"]
    finally:
        stop_process(process)
        process.stdout.close()


@pytest.fixture(scope="module", params=["loopback", "mutual_tls"])
def run(request, make_light):
    """A finished run whose four services all ran elsewhere, and the children its trainer had."""
    workplace, secured = make_light(), request.param == "mutual_tls"
    certificates = request.getfixturevalue("certificates")
    options = server_options(certificates) if secured else []
    with contextlib.ExitStack() as stack:
        endpoints = {
            name: stack.enter_context(serving(workplace, *command, *options)) for name, command in COMMANDS.items()
        }
        tools = ["--sandbox", endpoints["sandbox"], *(sandbox_options(certificates) if secured else [])]
        host = (ROLLOUT_HOST, "--model", workplace.folder / "tiny", *tools, *options)
        endpoints["rollout"] = stack.enter_context(serving(workplace, *host))
        assert all(endpoint.startswith("grpcs://" if secured else "grpc://") for endpoint in endpoints.values())
        settings = {f"services.{name}.endpoint": endpoint for name, endpoint in endpoints.items()}
        if secured:
            for name in endpoints:
                for field, path in client_settings(certificates).items():
                    settings[f"services.{name}.{field}"] = path
        trainer = workplace.start("run", "light", settings)
        trainer.until(lambda: trainer.run.steps(), "the first step is done")
        children = [pid for pid in children_of(trainer.process.pid) if os.path.exists(f"/proc/{pid}")]
        return trainer.succeed(), children


def test_run_equals_that_with_embedded_services(run, reference):
    assert run[0].steps() == reference[1].steps()


def test_trainer_starts_no_service_of_its_own(run):
    assert run[1] == []
