"""The pool: templates by tier, and who gets their slots. Knows nothing of gRPC.

Jobs beyond the slots wait in the order they came, as many as there are: whoever hands them out bounds them.
Every job is answered exactly once. A slot or zygote that dies under a job is the infrastructure's fault: the job
runs again on another slot, and only when that fails repeatedly is it answered as unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from rstar_sandbox.attacks import admit
from rstar_sandbox.executor import Counters, IsolationError, Placed, SlotLostError
from rstar_sandbox.isolation import Plan
from rstar_sandbox.levels import is_at_least
from rstar_sandbox.messages import CANCEL, CLOSE, Job, Outcome
from rstar_sandbox.permits import Permits
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.slot_connection import SlotConnection
from rstar_sandbox.template import Template
from rstar_sandbox.tiers import STANDARD, tier_of_source, tiers_for
from rstar_sandbox.watch import MOST_STARVED, START_SECONDS
from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["WorkerPool"]

_ATTEMPTS = 3
_ANSWER_GRACE_SECONDS = 15.0
_CANCEL_SECONDS = 10.0


class WorkerPool:
    """Runs jobs on slots; an `Executor`.

    Args:
        settings: of the service.
        zygote: of the standard tier, one that is starting already; None: start one.
    """

    def __init__(self, settings: SandboxSettings, zygote: ZygoteProcess | None = None) -> None:
        self.settings = settings
        self.plan = Plan()
        self.failed_attacks: tuple[str, ...] = ()
        """What of the self-test's attacks succeeded on this machine."""
        self.running = 0
        self.counters = Counters()
        self._permits = Permits(settings.slots)
        self._waiting_for_template = 0
        self._admitted: asyncio.Future[None] | None = None
        self._templates = {
            tier: Template(
                settings,
                tier,
                self.counters,
                zygote if tier == STANDARD else None,
                slots=settings.slots if tier == STANDARD else 1,
                admit=self._admit if tier == STANDARD else None,
            )
            for tier in tiers_for(settings.warm)
        }
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def level(self) -> str:
        """The isolation level in force."""
        return self.plan.level

    @property
    def warmed(self) -> tuple[str, ...]:
        """Modules that were imported ahead, in the largest tier."""
        return max((template.warmed for template in self._templates.values()), key=len)

    @property
    def queued(self) -> int:
        """Jobs that wait for a slot."""
        return self._permits.waiting + self._waiting_for_template

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the current zygote of the standard tier."""
        return self._templates[STANDARD].zygote_pid

    def start(self) -> None:
        """Starts what runs in the background; jobs wait until the first slots are there."""
        self._admitted = asyncio.get_running_loop().create_future()
        self._admitted.add_done_callback(_mark_retrieved)
        for tier, template in self._templates.items():
            self._background(self._keep(template, first=tier == STANDARD))

    async def ready(self) -> None:
        """Returns when programs can run.

        Raises:
            IsolationError: the required isolation cannot be had.
        """
        assert self._admitted is not None, "the pool has not been started"
        await asyncio.shield(self._admitted)
        await self._templates[STANDARD].wait_ready()

    async def stop(self) -> None:
        """Ends all slots and zygotes; jobs that run or wait are answered as unavailable."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._permits.close()
        await asyncio.gather(*(template.stop() for template in self._templates.values()))
        if self._admitted is not None and not self._admitted.done():
            self._admitted.cancel()

    async def run(self, job: Job) -> Placed:
        """Runs one job to its outcome; see `Executor`."""
        template = self._templates[self._tier_of(job)]
        queue_seconds, lost_alone, arrived = 0.0, 0, time.monotonic()
        for _ in range(_ATTEMPTS):
            waited_from = time.monotonic()
            try:
                slot = await self._acquire(template)
            except asyncio.TimeoutError:
                break  # all patience has been spent on a template that does not come
            except SlotLostError:
                if self._stopping:
                    break
                continue  # it died between two calls; how long this one had waited in the queue is no matter
            finally:
                queue_seconds += time.monotonic() - waited_from
            try:
                return Placed(await self._run_on(slot, job), queue_seconds)
            except SlotLostError as lost:
                lost_alone += lost.alone
                self.counters.retries += 1
        if lost_alone == _ATTEMPTS and not self.plan.shields_supervisor:
            # On this machine a program can kill its slot; that it happens every time is the program's doing.
            return Placed(Outcome("crashed", signal=9, detail="the slot died with the program"), queue_seconds)
        detail = f"no worker could run the program to its end within {time.monotonic() - arrived:.1f} s"
        return Placed(Outcome("unavailable", detail=detail), queue_seconds)

    async def lease(self) -> SlotConnection:
        """A slot made for a session, of the largest tier and outside of the pool; give it back with `end_lease`.

        Raises:
            SlotLostError: no slot can be made.
        """
        template = list(self._templates.values())[-1]
        try:
            await asyncio.wait_for(self._usable(template), self.settings.patience_seconds)
            return await template.open_slot()
        except (OSError, asyncio.TimeoutError) as error:
            raise SlotLostError(alone=False) from error

    def end_lease(self, slot: SlotConnection) -> None:
        """Ends a session's slot."""
        slot.tell(CLOSE)
        slot.close()

    def _tier_of(self, job: Job) -> str:
        return tier_of_source(job.code, self.settings.warm)

    async def _usable(self, template: Template) -> None:
        """Returns when a template can give slots, or raises what keeps every one from doing so."""
        if not template.is_ready:
            await self.ready()
            await template.wait_ready()

    async def _acquire(self, template: Template) -> SlotConnection:
        """Waits for the template, then for a permit, then takes a slot."""
        if self._stopping:
            raise SlotLostError(alone=False)
        if not template.is_ready:
            self._waiting_for_template += 1
            try:
                await asyncio.wait_for(self._usable(template), self.settings.patience_seconds)
            finally:
                self._waiting_for_template -= 1
        await self._permits.acquire()
        try:
            return await template.acquire()
        except BaseException:
            self._permits.release()
            raise

    async def _run_on(self, slot: SlotConnection, job: Job) -> Outcome:
        exchange = slot.exchange(job.frame())
        patience = START_SECONDS + MOST_STARVED * job.limits.wall_seconds + _ANSWER_GRACE_SECONDS
        # A slot that does not answer is killed, and the exchange is over by that.
        killing = asyncio.get_running_loop().call_later(patience, slot.template.kill, slot)
        self.running += 1
        try:
            # Shielded: a slot whose caller is gone still has to answer before it is used again.
            frame = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            self._background(self._cancel(slot, exchange))
            raise
        finally:
            killing.cancel()
            self.running -= 1
        if frame is None:
            self._permits.release()
            raise SlotLostError(alone=await slot.died_alone())
        self._give_back(slot)
        outcome = Outcome.from_frame(frame)
        self._count(outcome)
        return outcome

    def _count(self, outcome: Outcome) -> None:
        if outcome.forked_ahead:
            self.counters.forked_ahead += 1
        else:
            self.counters.forked_late += 1
        self.counters.leaked_processes += outcome.leaked_processes

    async def _cancel(self, slot: SlotConnection, exchange: asyncio.Future[dict[str, Any] | None]) -> None:
        """Has the running program killed, and takes the slot back when it is."""
        slot.tell(CANCEL)
        try:
            done, _ = await asyncio.wait({exchange}, timeout=_CANCEL_SECONDS)
            if not done:
                slot.template.kill(slot)
            if await exchange is not None:
                slot.template.release(slot)
        finally:
            self._permits.release()

    def _give_back(self, slot: SlotConnection) -> None:
        slot.template.release(slot)
        self._permits.release()

    async def _keep(self, template: Template, *, first: bool) -> None:
        if first:
            await template.supervise(None)
            return
        with contextlib.suppress(IsolationError):  # then nothing runs here
            await self.ready()
            await template.supervise(self.plan)

    async def _admit(self, template: Template) -> None:
        """Settles the level, once: what the probe found, what the self-test left of it, what was required."""
        assert template.plan is not None
        assert self._admitted is not None
        self.plan, self.failed_attacks = await admit(template)
        required = self.settings.require_level
        if required is not None and not is_at_least(self.plan.level, required):
            succeeded = f"; these attacks succeed: {', '.join(self.failed_attacks)}" if self.failed_attacks else ""
            self._admitted.set_exception(
                IsolationError(
                    f"isolation level {required!r} is required and this machine offers "
                    f"{self.plan.level!r}{succeeded}; `rstar-sandbox doctor` says what is missing"
                )
            )
            await asyncio.get_running_loop().create_future()  # no slot is handed out, ever
        self._admitted.set_result(None)

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _mark_retrieved(future: asyncio.Future[None]) -> None:
    """Keeps asyncio from complaining of an error that nobody waited for."""
    if not future.cancelled():
        future.exception()
