"""The HTTP interface of a real service, over TLS and with a token."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Server:
    """A running service and what its clients know."""

    url: str
    context: ssl.SSLContext

    def ask(self, path: str, body: Any = None, token: str | None = "secret") -> tuple[int, Any]:
        """Status and body of an answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("http")
    (folder / "token").write_text("secret\n")
    certificate = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sandbox"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
    ]
    subprocess.run(certificate, cwd=folder, check=True, capture_output=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rstar_sandbox", "serve", "--listen", f"unix:{folder / 's'}", "--warm", ""),
            *("--http", "127.0.0.1:0", "--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")),
            *("--token-file", str(folder / "token"), "--slots", "2"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["http"]
        assert "listening" in json.loads(process.stdout.readline())
        yield Server(url, ssl.create_default_context(cafile=str(folder / "cert.pem")))
    finally:
        process.kill()
        process.wait()


def test_sandbox_fusion_clients_run_code(server: Server) -> None:
    body = {"code": "print(int(input()) * 2)", "language": "python", "stdin": "21", "run_timeout": 10}
    status, answer = server.ask("/run_code", body)
    assert (status, answer["status"], answer["run_result"]["stdout"]) == (200, "Success", "42\n")


def test_sandbox_fusion_clients_see_a_timeout(server: Server) -> None:
    _, answer = server.ask("/run_code", {"code": "while True: pass", "language": "python", "run_timeout": 0.3})
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")


def test_code_judge_clients_run_a_long_batch_in_its_order(server: Server) -> None:
    submissions = [{"type": "python", "solution": f"print({n} * 3)", "input": "", "sub_id": str(n)} for n in range(40)]
    submissions.append({"type": "python", "solution": "1 / 0"})
    status, answer = server.ask("/run/long-batch", {"type": "batch", "submissions": submissions})
    assert status == 200
    assert [result["stdout"] for result in answer["results"][:-1]] == [f"{n * 3}\n" for n in range(40)]
    assert [result["sub_id"] for result in answer["results"][:-1]] == [str(n) for n in range(40)]
    assert not answer["results"][-1]["run_success"]
    assert "ZeroDivisionError" in answer["results"][-1]["stderr"]


def test_code_judge_clients_judge_one(server: Server) -> None:
    body = {"type": "python", "solution": "print(6 * 7)", "expected_output": "42"}
    _, answer = server.ask("/judge", body)
    assert answer["success"]
    assert "stdout" not in answer
    _, answer = server.ask("/run", {**body, "expected_output": "41"})
    assert (answer["success"], answer["run_success"], answer["stdout"]) == (False, True, "42\n")


@pytest.mark.parametrize("token", [None, "guess", ""])
def test_without_the_token_nothing_runs(server: Server, token: str | None) -> None:
    assert server.ask("/run_code", {"code": "1", "language": "python"}, token)[0] == 401


def test_health_checks_need_no_token(server: Server) -> None:
    assert server.ask("/ping", token=None) == (200, "pong")


def test_status_tells_the_queue_and_the_workers(server: Server) -> None:
    assert server.ask("/status")[1] == {"queue": 0, "num_workers": 2}


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/run_code", b"nonsense", 400, "JSON"),
        ("/run_code", [], 422, "object"),
        ("/run_code", {"language": "python"}, 422, "code"),
        ("/run_code", {"code": "1", "language": "cobol"}, 422, "cobol"),
        ("/run_code", {"code": "1", "language": "python", "run_timeout": -1}, 422, "wall_seconds"),
        ("/run_code", {"code": "1", "language": "python", "fetch_files": ["../x"]}, 422, "files"),
        ("/run/long-batch", {"submissions": []}, 422, "submissions"),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_by_name(
    server: Server, path: str, body: Any, status: int, named: str
) -> None:
    code, answer = server.ask(path, body)
    assert code == status
    assert named in answer


def test_many_clients_at_once_each_get_their_own(server: Server) -> None:
    def ask(number: int) -> str:
        text: str = server.ask("/run", {"type": "python", "solution": f"print({number})"})[1]["stdout"]
        return text

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(40))) == [f"{number}\n" for number in range(40)]
