from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar_reward.judge import Judge
from rstar_reward.verdict import Verdict, VerdictStatus
from rstar_reward.workers import Reply, ReplyKind, WorkerPool

Eventually = Callable[[Callable[[], bool]], bool]


def job(command: str) -> dict[str, object]:
    return {"verifier": "misbehaving", "gold": "", "candidate": command, "check_gold": False}


async def judged(pool: WorkerPool, command: str, gold: str = "g") -> Verdict:
    return await Judge(pool).judge(gold, f"\\boxed{{{command}}}", verifier="misbehaving")


async def until_full(pool: WorkerPool) -> None:
    async def full() -> None:
        while len(pool.worker_pids) < pool.settings.workers:  # noqa: ASYNC110 - other processes bring it about
            await asyncio.sleep(0.01)

    await asyncio.wait_for(full(), 20)


@pytest.mark.parametrize("command", ["loop", "hang"])
async def test_what_never_returns_is_ended_in_time(pool: WorkerPool, command: str) -> None:
    start = time.monotonic()
    reply = await pool.run(job(command))
    assert reply.kind in (ReplyKind.TIMEOUT, ReplyKind.STARVED)
    assert time.monotonic() - start < pool.settings.kill_seconds + 1.0
    await until_full(pool)


async def test_a_response_that_hangs_is_a_timeout_with_reward_zero(pool: WorkerPool) -> None:
    verdict = await judged(pool, "loop")
    assert (verdict.status, verdict.reward) == (VerdictStatus.TIMEOUT, 0.0)


async def test_a_reference_that_hangs_is_a_bad_gold(pool: WorkerPool) -> None:
    verdict = await judged(pool, "loop", gold="loop")
    assert (verdict.status, verdict.reward) == (VerdictStatus.BAD_GOLD, None)


async def test_time_that_the_worker_was_not_given_is_not_held_against_it(pool: WorkerPool) -> None:
    reply = await pool.run(job("wait 0.8"))
    assert reply.kind is ReplyKind.STARVED
    assert (await judged(pool, "wait 0.8")).status is VerdictStatus.CORRECT


async def test_memory_is_limited(pool: WorkerPool) -> None:
    verdict = await judged(pool, "memory")
    assert (verdict.status, verdict.reward) == (VerdictStatus.TOO_COMPLEX, 0.0)


async def test_deep_recursion_is_too_complex(pool: WorkerPool) -> None:
    assert (await judged(pool, "recurse")).status is VerdictStatus.TOO_COMPLEX


async def test_a_response_that_crashes_two_workers_does_not_disappear(pool: WorkerPool) -> None:
    verdict = await judged(pool, "abort")
    assert (verdict.status, verdict.reward) == (VerdictStatus.TOO_COMPLEX, 0.0)


async def test_a_worker_lost_once_is_retried(pool: WorkerPool, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    assert (await judged(pool, f"killed-once {mark}")).status is VerdictStatus.CORRECT


async def test_a_worker_lost_twice_is_no_reward(pool: WorkerPool) -> None:
    verdict = await judged(pool, "killed")
    assert (verdict.status, verdict.reward) == (VerdictStatus.UNSCORABLE, None)


@pytest.mark.parametrize("command", ["write", "spawn"])
async def test_a_worker_can_have_no_effect_on_files(pool: WorkerPool, command: str, tmp_path: Path) -> None:
    reply = await pool.run(job(f"{command} {tmp_path / 'made'}"))
    assert reply.kind is ReplyKind.ERROR
    assert "PermissionError" in reply.body["reason"]
    assert not os.listdir(tmp_path)


async def test_a_worker_can_connect_to_nothing(pool: WorkerPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reply = await pool.run(job(f"connect {listening.getsockname()[1]}"))
    assert "PermissionError" in reply.body["reason"]


async def test_a_worker_can_signal_no_other_process(pool: WorkerPool) -> None:
    reply = await pool.run(job(f"signal {pool.zygote_pid}"))
    assert "PermissionError" in reply.body["reason"]


async def test_a_reference_is_checked_once(pool: WorkerPool) -> None:
    judge = Judge(pool)
    await judge.judge("g", r"\boxed{pid}", verifier="misbehaving")
    replies = []
    run = pool.run

    async def recorded(job: dict[str, object], patience: float = 1.0, *, proven: bool = False) -> Reply:
        replies.append(job["check_gold"])
        return await run(job, patience, proven=proven)

    pool.run = recorded  # type: ignore[method-assign]
    await judge.judge("g", r"\boxed{other}", verifier="misbehaving")
    assert await judge.check_gold("g", "misbehaving") is None
    assert replies == [False]


async def test_a_reference_that_hangs_does_so_once(pool: WorkerPool) -> None:
    judge = Judge(pool)
    for _ in range(2):
        verdict = await judge.judge("loop", r"\boxed{pid}", verifier="misbehaving")
        assert verdict.status is VerdictStatus.BAD_GOLD
        replaced = pool.replaced
    assert await judge.check_gold("loop", "misbehaving") == verdict.reason
    assert pool.replaced == replaced


async def test_a_reference_that_was_refused_is_not_compared(pool: WorkerPool) -> None:
    judge = Judge(pool)
    assert await judge.check_gold("loop", "misbehaving") is not None
    verdict = await judge.judge("loop", r"\boxed{pid}", verifier="misbehaving")
    assert (verdict.status, verdict.reward) == (VerdictStatus.BAD_GOLD, None)


async def test_neighbours_of_a_killed_worker_go_on(pool: WorkerPool) -> None:
    replies = await asyncio.gather(*(pool.run(job(command)) for command in ["killed", "pid", "abort", "pid", "pid"]))
    assert [reply.kind for reply in replies[1::2]] == [ReplyKind.DONE, ReplyKind.DONE]
    assert replies[4].kind is ReplyKind.DONE
    await until_full(pool)


async def test_the_pool_returns_to_its_size_after_its_workers_were_killed(pool: WorkerPool) -> None:
    for pid in pool.worker_pids:
        os.kill(pid, signal.SIGKILL)
    assert (await judged(pool, "pid")).status is VerdictStatus.CORRECT
    await until_full(pool)


async def test_a_killed_zygote_is_replaced(pool: WorkerPool) -> None:
    before = pool.zygote_pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert (await judged(pool, "pid")).status is VerdictStatus.CORRECT
    assert pool.zygote_pid != before
    await until_full(pool)


async def test_closing_leaves_no_process(pool: WorkerPool, eventually: Eventually) -> None:
    pids = [*pool.worker_pids, pool.zygote_pid]
    await pool.close()
    assert eventually(lambda: not any(pid and Path(f"/proc/{pid}").exists() for pid in pids))


async def test_a_cancelled_job_frees_its_place(pool: WorkerPool) -> None:
    tasks = [asyncio.ensure_future(pool.run(job("loop"))) for _ in range(pool.settings.workers)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert (await pool.run(job("pid"))).kind is ReplyKind.DONE


async def test_equal_comparisons_share_one_job(pool: WorkerPool) -> None:
    judge = Judge(pool)
    verdicts = await asyncio.gather(*(judge.judge("g", r"\boxed{pid}", verifier="misbehaving") for _ in range(50)))
    assert len({verdict.reason for verdict in verdicts}) == 1
