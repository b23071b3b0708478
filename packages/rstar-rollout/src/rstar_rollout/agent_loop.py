"""The agent loop: generate a turn, run its tool calls, go on until the rollout ends.

Two modes. With a deterministic engine all live rollouts go in lockstep: every one generates its turn in one round,
then all tool calls run at once, then the next round, so each batch depends on ids only. Otherwise each rollout runs
on its own and never waits for another.

A limit on wall time ends a rollout in the midst of a turn or a call, except that a round of a lockstep is generated
to its end: when it ends must not depend on the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from rstar_model.chat_format import ChatFormat
from rstar_model.template_check import check_template
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import ToolSpec
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.continuation import StopRule
from rstar_rollout.engines.base import Admitting, Engine, EngineError, GenerationRequest
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.rollout_state import PlannedCall, RolloutJob, RolloutPolicy, RolloutState
from rstar_rollout.tool_executor import ToolExecutor, ToolInvocation, ToolResult

__all__ = ["AgentLoop", "RolloutBatch"]

_ATTEMPTS = 2  # a rollout that the infrastructure ended is made once more

_log = logging.getLogger(__name__)


class AgentLoop:
    """Makes rollouts with one engine and one set of tools.

    Args:
        engine: started.
        chat_format: how conversations are written.
        tokenizer: of the engine's model.
        tools: None: no tools are offered, whatever a request says.
        max_tool_calls: calls in flight at once; a tool may have a limit of its own.
        max_rollouts: rollouts in flight at once, where the engine is not deterministic.

    Raises:
        UserInputError: the format does not suit the tokenizer or the model's chat template.
    """

    def __init__(
        self,
        engine: Engine,
        chat_format: ChatFormat,
        tokenizer: Tokenizer,
        tools: ToolExecutor | None,
        *,
        max_tool_calls: int = 64,
        max_rollouts: int = 1024,
    ) -> None:
        chat_format.end_of_turn_id(tokenizer)  # an unsuitable format is refused here, not in the first rollout
        self.engine = engine
        self.chat_format = chat_format
        self.tokenizer = tokenizer
        self._tools = tools
        self._tool_slots = asyncio.Semaphore(max_tool_calls)
        self._own_slots = {
            spec.name: asyncio.Semaphore(spec.limits.max_concurrent)
            for spec in self.specs
            if spec.limits.max_concurrent > 0
        }
        self._max_rollouts = max_rollouts
        self.template_report = check_template(chat_format, tokenizer)
        for line in self.template_report.lines():
            _log.log(logging.WARNING if self.template_report.found else logging.INFO, "%s", line)

    def batch(
        self,
        problems: Sequence[ProblemRequest],
        sampling: SamplingSettings,
        limits: RolloutLimits,
        tools: ToolSettings,
        *,
        stop_after_groups: int = 0,
    ) -> RolloutBatch:
        """Prepare the rollouts of a request; iterate over the result to run them.

        Args:
            problems: what to roll out, and which stopped rollouts to go on with.
            sampling, limits, tools: settings of all of them.
            stop_after_groups: stop those that still run when the rollouts of so many groups have ended; 0: never.
                A lockstep is stopped between its rounds, so what comes out does not depend on the clock.

        Raises:
            UserInputError: a group of two problems, a rollout that would be made twice, or one to go on with that
                began with another prompt.
        """
        if self._tools is None and tools.enabled:
            tools = ToolSettings(False, tools.wall_seconds, tools.memory_bytes)
        policy = RolloutPolicy(
            self.chat_format,
            self.tokenizer,
            self.specs,
            sampling,
            limits,
            tools,
            self.engine.name,
            self.engine.max_model_tokens,
        )
        jobs = [
            RolloutJob(problem.problem_id, problem.group_id, problem.prompt, index, partial.get(index))
            for problem in problems
            for partial in [{trajectory.sample_index: trajectory for trajectory in problem.partial}]
            for index in problem.sample_indices
        ]
        _check_groups(problems, jobs)
        for job in jobs:
            if job.partial is not None:
                RolloutState(job, policy, "")  # one that does not fit is refused here, not in the middle of a step
        required = [problem.group for problem in problems if problem.must_finish]
        rule = StopRule((job.group for job in jobs), stop_after_groups, required)
        return RolloutBatch(self, jobs, policy, self._max_rollouts, rule)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools that a policy can be offered."""
        return self._tools.specs if self._tools is not None else ()

    async def run_calls(self, calls: Sequence[PlannedCall]) -> list[ToolResult]:
        """Run the calls of one turn at once; results in the order of the calls."""
        return list(await asyncio.gather(*(self._run_call(call) for call in calls)))

    async def _run_call(self, call: PlannedCall) -> ToolResult:
        if call.answer is not None:
            return call.answer
        if call.invocation is None:
            raise RuntimeError("a planned call is either answered or to be run")
        return await self.run_tool(call.invocation)

    async def run_tool(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call when a slot is free; whatever goes wrong comes back as a status."""
        if self._tools is None:
            return ToolResult(ToolStatus.UNAVAILABLE, "", detail="no tool executor")
        # The tool's own slot first: a call that waits for a busy tool holds no slot of the others.
        async with self._own_slots.get(invocation.name) or contextlib.nullcontext(), self._tool_slots:
            try:
                return await self._tools.execute(invocation)
            except Exception as error:  # an executor must not raise; that it does is the infrastructure's fault
                _log.exception("call %s", invocation.call_id)
                return ToolResult(ToolStatus.UNAVAILABLE, "", detail=f"{type(error).__name__}: {error}")


def _check_groups(problems: Sequence[ProblemRequest], jobs: Sequence[RolloutJob]) -> None:
    """A group is one problem, and each of its samples is one rollout: advantages are taken over it."""
    owners: dict[str, str] = {}
    for problem in problems:
        if owners.setdefault(problem.group, problem.problem_id) != problem.problem_id:
            found = f"{problem.group}: {owners[problem.group]} and {problem.problem_id}"
            raise UserInputError("group_id", found, "a group of its own for each problem")
    twice = [trajectory_id for trajectory_id, count in Counter(j.trajectory_id for j in jobs).items() if count > 1]
    if twice:
        raise UserInputError("problems", twice[0], "each sample of a group once")


class RolloutBatch:
    """The rollouts of one request. Iterating runs them and yields trajectories as they finish."""

    def __init__(
        self, loop: AgentLoop, jobs: Sequence[RolloutJob], policy: RolloutPolicy, max_rollouts: int, rule: StopRule
    ) -> None:
        self._loop = loop
        self._engine = loop.engine
        self._jobs = list(jobs)
        self._policy = policy
        self._max_rollouts = max_rollouts
        self._rule = rule
        # Unique for ever: a sandbox remembers call ids, and another run may use the same trajectory ids.
        self._scope = uuid.uuid4().hex[:16]
        self._attempts = 0
        self._cancelled = False
        self._delivered = 0
        self._in_flight: set[str] = set()
        self._calling: set[asyncio.Task[list[ToolResult]]] = set()

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self._jobs)

    @property
    def continued(self) -> list[Trajectory]:
        """The stopped rollouts that the request goes on with."""
        return [job.partial for job in self._jobs if job.partial is not None]

    def cancel(self) -> int:
        """End what is still running; its trajectories come out as CANCELLED with what they have. How many are left?"""
        self._cancelled = True
        self._engine.abort(list(self._in_flight))
        for calling in self._calling:
            calling.cancel()
        return len(self._jobs) - self._delivered

    def __aiter__(self) -> AsyncIterator[Trajectory]:
        """Run; closing the iterator frees everything."""
        return self._lockstep() if self._engine.deterministic else self._free_running()

    def _ended(self, job: RolloutJob) -> None:
        self._delivered += 1
        self._rule.ended(job.group)

    def _begin(self, job: RolloutJob) -> RolloutState:
        self._attempts += 1
        return RolloutState(job, self._policy, f"{self._scope}.{self._attempts}")

    def _next_request(self, state: RolloutState) -> GenerationRequest | None:
        if self._cancelled:
            state.cancel()
        return state.next_request()

    async def _run_calls(self, state: RolloutState, calls: Sequence[PlannedCall]) -> None:
        """Run the calls of a turn and hand their results over; `cancel` and the limit on time do not wait for them."""
        calling = asyncio.ensure_future(self._loop.run_calls(calls))
        self._calling.add(calling)
        try:
            # Unlike `await calling`, this tells a call cancelled by `cancel` from our own cancellation.
            done, _ = await asyncio.wait({calling}, timeout=state.seconds_left)
        finally:
            self._calling.discard(calling)
            calling.cancel()
        if not done:
            state.expire()
        elif calling.cancelled():
            state.cancel()
        else:
            state.accept_tools(calls, calling.result())

    async def _run_pending(self, state: RolloutState) -> None:
        """The calls that were running when the rollout was stopped are run again."""
        if not self._cancelled and (calls := state.pending_calls()):
            await self._run_calls(state, calls)

    # -- lockstep -------------------------------------------------------------------------------------

    async def _lockstep(self) -> AsyncIterator[Trajectory]:
        live = [(self._begin(job), 1) for job in self._jobs]
        try:
            while live:
                await self._round([state for state, _ in live])
                following: list[tuple[RolloutState, int]] = []
                for state, attempt in live:
                    if not state.finished:
                        following.append((state, attempt))
                        continue
                    self._engine.release(state.sequence_id)
                    if self._retried(state, attempt):
                        following.append((self._begin(state.job), attempt + 1))
                        continue
                    self._ended(state.job)
                    yield state.trajectory()
                live = following
                if live and self._rule.reached and not self._cancelled:
                    self.cancel()
        finally:
            for state, _ in live:
                self._engine.release(state.sequence_id)

    async def _round(self, states: Sequence[RolloutState]) -> None:
        """One turn of every rollout that has one to generate, and all their tool calls."""
        await asyncio.gather(*(self._run_pending(state) for state in states))
        pending = [(state, request) for state in states if (request := self._next_request(state)) is not None]
        if not pending:
            return
        self._in_flight = {request.request_id for _, request in pending}
        try:
            results = await self._engine.generate_batch([request for _, request in pending])
        except EngineError as error:
            for state, _ in pending:
                state.fail(str(error))
            return
        finally:
            self._in_flight = set()
        turns = [(state, state.accept_turn(result)) for (state, _), result in zip(pending, results, strict=True)]
        calling = [(state, calls) for state, calls in turns if calls]
        await asyncio.gather(*(self._run_calls(state, calls) for state, calls in calling))

    def _retried(self, state: RolloutState, attempt: int) -> bool:
        infrastructure = state.end_reason is EndReason.INFRASTRUCTURE
        return infrastructure and attempt < _ATTEMPTS and not self._cancelled

    # -- free running ---------------------------------------------------------------------------------

    async def _free_running(self) -> AsyncIterator[Trajectory]:
        waiting = list(reversed(self._jobs))
        running: set[asyncio.Task[tuple[RolloutJob, Trajectory]]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < self._max_rollouts:
                    running.add(asyncio.create_task(self._rollout(waiting.pop())))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finished = [task.result() for task in done]
                for job, _ in finished:
                    self._ended(job)
                if (waiting or running) and self._rule.reached and not self._cancelled:
                    self.cancel()  # before a slow reader takes over the first of them
                for _, trajectory in finished:
                    yield trajectory
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _rollout(self, job: RolloutJob) -> tuple[RolloutJob, Trajectory]:
        for attempt in range(1, _ATTEMPTS + 1):
            state = self._begin(job)
            try:
                await self._run_pending(state)
                await self._admit(state)
                await self._conversation(state)
            finally:
                self._engine.release(state.sequence_id)
            if not self._retried(state, attempt):
                break
        return job, state.trajectory()

    async def _admit(self, state: RolloutState) -> None:
        """Wait for room at the engine; that is not the rollout's own time."""
        if not isinstance(self._engine, Admitting) or (first := self._next_request(state)) is None:
            return
        self._in_flight.add(first.request_id)
        state.stop_clock()
        try:
            await self._engine.admit(first)
        except EngineError as error:
            state.fail(str(error))
        finally:
            self._in_flight.discard(first.request_id)
        state.start_clock()

    async def _conversation(self, state: RolloutState) -> None:
        while (request := self._next_request(state)) is not None:
            self._in_flight.add(request.request_id)
            timer = self._abort_at_limit(state, request)
            try:
                result = await self._engine.generate(request)
            except EngineError as error:
                state.fail(str(error))
                return
            finally:
                self._in_flight.discard(request.request_id)
                if timer is not None:
                    timer.cancel()
            calls = state.accept_turn(result)
            if calls:
                await self._run_calls(state, calls)

    def _abort_at_limit(self, state: RolloutState, request: GenerationRequest) -> asyncio.TimerHandle | None:
        """Have the engine stop when the rollout's time is over; what it has generated by then is kept."""
        seconds = state.seconds_left
        if seconds is None:
            return None

        def stop() -> None:
            state.expire()
            self._engine.abort([request.request_id])

        return asyncio.get_running_loop().call_later(seconds, stop)
