from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_protos.service import open_channel
from rstar_reward import RewardClient, ScoreJob, Segment, SegmentKind, VerdictStatus, verify

Eventually = Callable[[Callable[[], bool]], bool]


async def test_a_verdict_crosses_the_wire_whole(endpoint: str) -> None:
    response = "<answer>\\boxed{\\frac{1}{\\sqrt{2}}}</answer>"
    async with RewardClient(endpoint) as client:
        assert await client.score("\\frac{\\sqrt{2}}{2}", response) == verify("\\frac{\\sqrt{2}}{2}", response)


async def test_an_excluded_rollout_has_no_reward_field(endpoint: str) -> None:
    channel = open_channel(endpoint)
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    answer = await stub.Score(reward_pb2.ScoreRequest(request_id="r", gold="4", response="x", end_reason=6))
    assert answer.status == reward_pb2.VERDICT_STATUS_UNSCORABLE
    assert not answer.HasField("reward")
    assert answer.request_id == "r"
    await channel.close()


async def test_segments_and_end_reasons_cross_the_wire(endpoint: str) -> None:
    segments = [Segment(SegmentKind.TOOL, "\\boxed{4}"), Segment(SegmentKind.POLICY, "\\boxed{5}")]
    async with RewardClient(endpoint) as client:
        assert (await client.score("5", segments, end_reason="answered")).reward == 1
        assert (await client.score("4", segments, end_reason="answered")).reward == 0
        assert (await client.score("5", segments, end_reason="truncated")).status is VerdictStatus.NO_ANSWER


async def test_many_verdicts_are_keyed_by_id_and_a_slow_one_holds_up_no_other(endpoint: str) -> None:
    slow = "\\lim_{x \\to 0} \\frac{\\sin^{50} x - x^{50}}{x^{52}}"
    jobs = [ScoreJob("slow", "3", f"\\boxed{{{slow}}}")]
    jobs += [ScoreJob(str(value), str(value), f"\\boxed{{{value + value % 2}}}") for value in range(600)]
    order = []
    async with RewardClient(endpoint) as client:
        async for job_id, verdict in client.score_many(jobs):
            order.append(job_id)
            if job_id != "slow":
                assert verdict.reward == float(int(job_id) % 2 == 0)
    assert sorted(order) == sorted(job.job_id for job in jobs)
    assert order[0] != "slow"


async def test_jobs_with_one_id_are_refused(endpoint: str) -> None:
    async with RewardClient(endpoint) as client:
        with pytest.raises(UserInputError, match="job_id"):
            _ = [item async for item in client.score_many([ScoreJob("a", "1", "1"), ScoreJob("a", "2", "2")])]


async def test_golds_are_checked(endpoint: str) -> None:
    async with RewardClient(endpoint) as client:
        bad = await client.check_golds(["4", "", "\\frac{1}{2}", "((", "\\text{yes}", "(" * 500])
    assert set(bad) == {1, 3, 5}


async def test_an_unknown_verifier_is_the_callers_error(endpoint: str) -> None:
    async with RewardClient(endpoint) as client:
        with pytest.raises(UserInputError, match="verifier"):
            await client.score("4", "x", verifier="chess")


async def test_response_and_segments_together_are_refused(endpoint: str) -> None:
    request = reward_pb2.ScoreRequest(gold="4", response="x")
    request.segments.add(kind=2, text="y")
    channel = open_channel(endpoint)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await reward_pb2_grpc.RewardServiceStub(channel).Score(request)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await channel.close()


async def test_a_refused_request_does_not_take_its_stream_along(endpoint: str) -> None:
    jobs = [ScoreJob("bad", "4", "\\boxed{4}", verifier="chess"), ScoreJob("good", "4", "\\boxed{4}")]
    async with RewardClient(endpoint) as client:
        verdicts = {job_id: verdict async for job_id, verdict in client.score_many(jobs)}
    assert verdicts["good"].reward == 1
    assert verdicts["bad"].status is VerdictStatus.UNSCORABLE


class Serving:
    """A service started by hand, to be killed."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "rstar_reward",
            "serve",
            "--listen",
            f"unix:{path}",
            "--workers",
            "2",
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.endpoint = json.loads(self.process.stdout.readline())["listening"]


async def test_kill_9_takes_the_workers_along_and_the_socket_can_be_used_again(
    tmp_path: Path, eventually: Eventually, descendants: Callable[[int], set[int]]
) -> None:
    first = Serving(tmp_path / "s")
    children = descendants(first.process.pid)
    assert len(children) >= 3  # a zygote and two workers
    # One of them busy: it would not notice the end of its socket.
    client = RewardClient(first.endpoint, patience_seconds=0.1)
    channel = open_channel(first.endpoint)
    busy = reward_pb2_grpc.RewardServiceStub(channel).Score(
        reward_pb2.ScoreRequest(gold="3", response="\\boxed{\\lim_{x \\to 0} \\frac{\\sin^{50} x - x^{50}}{x^{52}}}")
    )
    await client.score("\\sqrt{8}", "\\boxed{2\\sqrt{2}}")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    assert eventually(lambda: not any(_alive(pid) for pid in children))
    busy.cancel()
    await client.close()
    await channel.close()
    second = Serving(tmp_path / "s")
    async with RewardClient(second.endpoint) as again:
        assert (await again.score("4", "\\boxed{4}")).reward == 1
    second.process.terminate()
    assert second.process.wait(60) == 0


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigterm_drains_and_leaves_no_process(
    tmp_path: Path, eventually: Eventually, descendants: Callable[[int], set[int]]
) -> None:
    serving = Serving(tmp_path / "s")
    children = descendants(serving.process.pid)
    serving.process.terminate()
    assert serving.process.wait(60) == 0
    assert eventually(lambda: not any(_alive(pid) for pid in children))


def test_the_front_never_imports_sympy(tmp_path: Path) -> None:
    program = (
        "import sys, rstar_reward.cli, rstar_reward.service, rstar_reward.client; "
        "assert not {'sympy', 'mpmath', 'math_verify', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def page_lines(address: str) -> list[str]:
    with urllib.request.urlopen(address) as page:
        return page.read().decode().splitlines()


async def test_verdicts_are_counted_by_status(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serving = Serving(tmp_path / "s", "--metrics-port", str(port))
    async with RewardClient(serving.endpoint) as client:
        for response in ("\\boxed{4}", "\\boxed{5}", "\\boxed{5}", "no", "\\boxed{9^{9^{9^{9}}}}"):
            await client.score("4", response)
        await client.score("", "\\boxed{4}")
    lines = await asyncio.to_thread(page_lines, f"http://127.0.0.1:{port}/metrics")
    counted = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if "verdicts_total{" in line}
    expected = {"correct": 1, "wrong": 2, "no_answer": 1, "too_complex": 1, "bad_gold": 1}
    name = 'rstar_reward_verdicts_total{{status="{}",verifier="math"}}'
    assert {status: counted.get(name.format(status)) for status in expected} == expected
    assert "rstar_reward_workers 2.0" in lines
    serving.process.terminate()
    assert serving.process.wait(60) == 0


async def test_the_service_judges_other_kinds_of_answers(endpoint: str) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    async with RewardClient(endpoint) as client:
        assert (await client.score("B", "<answer>(B)</answer>", verifier="choice")).reward == 1
        assert (await client.score("new york", "<answer>New York</answer>", verifier="exact")).reward == 1
        assert (await client.score('[{"f": {"x": [1, 2]}}]', call, verifier="function_call")).reward == 1
        assert set(await client.check_golds(["A", "42"], "choice")) == {1}
