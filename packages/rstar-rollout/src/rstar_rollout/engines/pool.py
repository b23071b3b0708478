"""Several engines behind the engine protocol: the load-balanced scheduler at work.

A rollout waits until the scheduler has an engine for it, keeps that engine for all its turns, and gives its
reservation back when it is released. An engine that dies is taken out; the turns it was generating begin again on
other engines from the tokens of the request, so each rollout is delivered once, and the dead engine is replaced in
the background. Every engine that takes work has the pool's weight version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.announced import AnnouncedUpdate
from rstar_rollout.engines.base import (
    Engine,
    EngineDeadError,
    EngineError,
    EngineNotReadyError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.gate import GatedEngine
from rstar_rollout.engines.pool_seats import EngineFactory, PooledRollout, Seat, SeatState, new_place, summed_state
from rstar_rollout.engines.pool_transfer import SenderGroup
from rstar_rollout.metrics import count_moved, count_recomputed, show_pool
from rstar_rollout.scheduler.load import RolloutSpec
from rstar_rollout.scheduler.policies import Policy
from rstar_rollout.scheduler.scheduler import RolloutScheduler

__all__ = ["EngineFactory", "EnginePool"]

_log = logging.getLogger(__name__)
_RESTARTS = 3
_RESTART_SECONDS = 1.0
_LACKING = "an engine that was started again lacks the weights of version {}, which only their sender can send"


class EnginePool(GatedEngine):
    """See the module text.

    Args:
        factories: makes each engine, at the start and again after it has died.
        policy: decides who goes where, fresh.
        slots: rollouts on one engine at once.
    """

    deterministic = False

    def __init__(self, factories: Sequence[EngineFactory], policy: Policy, *, slots: int) -> None:
        super().__init__()
        if not factories:
            raise UserInputError("engines", 0, "at least one")
        self._seats = [Seat(f"engine-{index}", factory, factory()) for index, factory in enumerate(factories)]
        self.name = self._seats[0].engine.name
        self.max_model_tokens: int | None = None
        self.recomputed_tokens = 0
        """Tokens of cached prefixes that an engine had to compute again, where engines tell."""
        self.moved_rollouts = 0
        """Times that a rollout has lost its engine."""
        self._slots = slots
        self._scheduler = RolloutScheduler(policy)
        self._rollouts: dict[str, PooledRollout] = {}
        self._doubt = ""
        self._announced: AnnouncedUpdate[WeightSource] = AnnouncedUpdate()
        self._committed: tuple[int, WeightSource, str] | None = None
        self._sender = SenderGroup()
        self._receiving: list[tuple[Seat, Engine]] = []
        self._updating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    # -- life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all engines, at once."""
        await asyncio.gather(*(seat.engine.start() for seat in self._seats))
        limits = [seat.engine.max_model_tokens for seat in self._seats]
        self.max_model_tokens = min((limit for limit in limits if limit is not None), default=None)
        for seat in self._seats:
            await self._enlist(seat)

    async def _enlist(self, seat: Seat) -> None:
        """Let the scheduler use an engine."""
        self._scheduler.add_engine(await seat.capacity(self._slots))
        seat.state = SeatState.ALIVE

    async def shutdown(self) -> None:
        """Stop all engines."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for rollout in self._rollouts.values():
            if not rollout.seat.done():
                rollout.seat.set_exception(EngineError("the engines were stopped"))
                rollout.seat.exception()  # seen here, should nobody wait for it any more
        await asyncio.gather(*(seat.engine.shutdown() for seat in self._seats), return_exceptions=True)

    # -- generation -----------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn on the rollout's engine; a new rollout waits for one first.

        The result's ``queue_seconds`` is the time that the rollout waited.
        """
        await self._enter(request)
        rollout = self._rollouts.get(request.sequence_id) or self._register(request)
        rollout.requests.add(request.request_id)
        rollout.natural = False
        clock = asyncio.get_running_loop().time
        queued = 0.0
        try:
            while True:
                began = clock()
                seat = await asyncio.shield(rollout.seat)
                queued += clock() - began
                if seat is None:
                    return GenerationResult((), (), "aborted", self._version, queue_seconds=queued)
                result = await self._generate_on(seat, rollout, request, on_tokens)
                if result is not None:
                    return replace(result, queue_seconds=queued)
        finally:
            rollout.requests.discard(request.request_id)

    async def admit(self, request: GenerationRequest) -> None:
        """Wait for an engine, so that the rollout's own time begins when it has one."""
        await self._enter(request)
        rollout = self._rollouts.get(request.sequence_id) or self._register(request)
        rollout.requests.add(request.request_id)
        try:
            await asyncio.shield(rollout.seat)
        finally:
            rollout.requests.discard(request.request_id)

    async def _generate_on(
        self, seat: Seat, rollout: PooledRollout, request: GenerationRequest, on_tokens: TokenCallback | None
    ) -> GenerationResult | None:
        """The turn; None if its engine has died, after the rollout has been given to another."""
        name = rollout.spec.rollout_id
        engine = seat.engine
        self._follow(seat)
        self._scheduler.begin_turn(name)
        seat.generating += 1
        try:
            result = await engine.generate(request, on_tokens)
        except EngineDeadError as error:
            # Every turn that it was generating says so; the seat may hold another engine by then.
            if seat.alive and seat.engine is engine:
                self._lose(seat, str(error))
            return None
        finally:
            if seat.alive and seat.engine is engine:
                self._follow(seat)
                seat.generating -= 1
        length = len(request.token_ids) + len(result.token_ids) - rollout.spec.prompt_tokens
        self._scheduler.end_turn(name, length)
        if result.cached_tokens is not None:
            expected = min(rollout.cached, len(request.token_ids) - 1) // seat.block_tokens * seat.block_tokens
            lost = max(0, expected - result.cached_tokens)
            self.recomputed_tokens += lost
            count_recomputed(lost)
        # The last token was drawn but never read.
        rollout.cached = len(request.token_ids) + len(result.token_ids) - 1
        rollout.length, rollout.natural = length, result.finish_reason != "aborted"
        return result

    def _register(self, request: GenerationRequest) -> PooledRollout:
        """A rollout's first request here: its budget is the worst case of all that may follow."""
        before = request.response_tokens  # of a rollout that was stopped earlier and goes on
        spec = RolloutSpec(
            request.sequence_id,
            request.noise.problem_id,
            len(request.token_ids) - before,
            before + request.max_new_tokens,
        )
        rollout = self._rollouts[request.sequence_id] = PooledRollout(spec, new_place())
        self._scheduler.submit([spec], {spec.rollout_id: before})
        self._place()
        return rollout

    def _place(self) -> None:
        if not self._resumed.is_set() or self._stopped:
            return
        for seat in self._seats:
            if seat.alive:
                self._follow(seat)
        for name, engine_id in self._scheduler.place():
            seat = next(seat for seat in self._seats if seat.name == engine_id)
            self._rollouts[name].seat.set_result(seat)
        show_pool(self._scheduler.in_flight, self._scheduler.waiting)

    def _follow(self, seat: Seat) -> None:
        """The scheduler's clock of an engine: tokens that one of its rollouts has got on average."""
        tokens = seat.engine.tokens_generated
        if seat.generating:
            self._scheduler.advance(seat.name, (tokens - seat.tokens_seen) / seat.generating)
        seat.tokens_seen = tokens

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early, those that wait for an engine too."""
        wanted = set(request_ids)
        for seat in self._seats:
            seat.engine.abort(request_ids)
        for rollout in self._rollouts.values():
            if wanted & rollout.requests and not rollout.seat.done():
                rollout.seat.set_result(None)
                self._scheduler.finish(rollout.spec.rollout_id, None)

    def release(self, sequence_id: str) -> None:
        """The rollout will not go on: its reservation is free for the next."""
        rollout = self._rollouts.pop(sequence_id, None)
        if rollout is None:
            return
        rollout.seat.cancel()
        self._scheduler.finish(sequence_id, rollout.length if rollout.natural else None)
        for seat in self._seats:
            seat.engine.release(sequence_id)
        self._place()

    # -- engines that die -----------------------------------------------------------------------------

    def _lose(self, seat: Seat, reason: str) -> None:
        """Take an engine out, let its rollouts wait for another, and have it replaced."""
        moved = self._scheduler.remove_engine(seat.name) if seat.alive else []
        seat.tokens_before += seat.engine.tokens_generated
        seat.state = SeatState.REVIVING
        self.moved_rollouts += len(moved)
        count_moved(len(moved))
        _log.error("%s died, %d rollouts move: %s", seat.name, len(moved), reason)
        for name in moved:
            self._rollouts[name].seat = new_place()
            self._rollouts[name].cached = 0
        if not self._stopped:
            self._revive(seat)
        self._place()

    async def _replace(self, seat: Seat) -> None:
        """Start an engine anew and give it the pool's weights; after three restarts its place stays empty.

        Weights that a sender moved by itself cannot be had once more without it: the engine is held out until the next
        update.
        """
        with contextlib.suppress(Exception):
            await seat.engine.shutdown()
        while seat.restarts < _RESTARTS:
            seat.restarts += 1
            engine: Engine | None = None
            try:
                engine = seat.factory()
                await engine.start()
                async with self._updating:
                    held_out = self._announced.version is not None or self._by_sender
                    if self._committed is not None and not held_out:
                        await _give_weights(engine, *self._committed)
                    seat.engine = engine
                    if held_out:
                        seat.state = SeatState.PARKED  # until the weights have reached it, see `commit_weight_update`
                    else:
                        await self._enlist(seat)
                self._fail_waiting()
                self._place()
                return
            except Exception as error:
                _log.error("%s could not be started again: %s", seat.name, error)
                if engine is not None:
                    with contextlib.suppress(Exception):
                        await engine.shutdown()
                await asyncio.sleep(_RESTART_SECONDS * 2**seat.restarts)
        seat.state = SeatState.GONE
        self._fail_waiting()

    @property
    def _none_left(self) -> bool:
        """There is no engine, and none is on its way."""
        return all(seat.state is SeatState.GONE for seat in self._seats)

    @property
    def _by_sender(self) -> bool:
        """The pool's weights were moved by their sender."""
        return self._committed is not None and bool(self._committed[1].backend)

    def _fail_waiting(self) -> None:
        """Rollouts are told when no engine is left, or only ones without weights that nobody is about to send."""
        error: EngineError | EngineNotReadyError = EngineError("no engine is left")
        if not self._none_left:
            coming = any(seat.state in (SeatState.ALIVE, SeatState.REVIVING) for seat in self._seats)
            if coming or self._announced.version is not None:
                return
            self._doubt = _LACKING.format(self._version)
            error = EngineNotReadyError(self._doubt)
        for rollout in self._rollouts.values():
            if not rollout.seat.done():
                rollout.seat.set_exception(error)
                rollout.seat.exception()

    # -- pause, weights, state ------------------------------------------------------------------------

    @property
    def _living(self) -> list[Seat]:
        return [seat for seat in self._seats if seat.alive]

    @property
    def _version(self) -> int:
        return self._committed[0] if self._committed is not None else 0

    @property
    def _refusal(self) -> str:
        return self._doubt

    @property
    def _busy(self) -> bool:
        return any(seat.generating for seat in self._living)

    async def resume(self) -> None:
        """Take work again."""
        await super().resume()
        self._place()

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Begin the update on every engine; where the sender moves the weights, also on those that were held out.

        Raises:
            WeightUpdateError: requests are running, an engine refuses, or the sender has to meet the engines anew.
        """
        async with self._updating:
            self._check_idle(WeightUpdateError)
            seats, sources = await self._reached_by(version, source)
            outcomes = await asyncio.gather(
                *(seat.engine.begin_weight_update(version, told) for seat, told in zip(seats, sources, strict=True)),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if isinstance(outcome, WeightUpdateError)]
            for seat, outcome in zip(seats, outcomes, strict=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, WeightUpdateError):
                    self._lose(seat, f"weight update to version {version} could not begin: {outcome}")
            if refused or self._none_left:
                if len(refused) < len(seats):
                    # Those that have begun generate nothing before an update succeeds.
                    self._doubt = f"weight update to version {version} could not begin: {refused[0]}"
                raise refused[0] if refused else WeightUpdateError("no engine is left")
            self._receiving = [(s, s.engine) for s, o in zip(seats, outcomes, strict=True) if o is None]
            if source.backend and not self._receiving:
                self._doubt = f"weight update to version {version} has reached no engine"
                raise WeightUpdateError(": ".join([self._doubt, *map(str, outcomes[:1])]))
            self._announced.begin(version, source)
            self._doubt = f"weight update to version {version} is under way"

    async def _reached_by(self, version: int, source: WeightSource) -> tuple[list[Seat], list[WeightSource]]:
        """Whom a call of an update goes to, and what each is told."""
        if not source.backend:
            return self._living, [source] * len(self._living)
        if self._sender.begins(source):
            seats = [seat for seat in self._seats if seat.state in (SeatState.ALIVE, SeatState.PARKED)]
            return seats, await self._sender.sources(source, [seat.engine for seat in seats])
        if self._announced.version != version:
            raise WeightUpdateError(f"no sender has begun an update to version {version}")
        seats = self._received()
        return seats, [source] * len(seats)

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Commit it on every engine; one that fails alone is taken out, so no engine serves other weights.

        Raises:
            WeightUpdateError: no such update was begun, or no engine could take the weights.
        """
        async with self._updating:
            source = self._announced.take(version)
            parked = [seat for seat in self._seats if seat.state is SeatState.PARKED]
            late = [] if source.backend else parked
            told = self._received() if source.backend else self._living
            seats = told + late
            outcomes = await asyncio.gather(
                *(seat.engine.commit_weight_update(version, checksum) for seat in told),
                *(_give_weights(seat.engine, version, source, checksum) for seat in late),
                return_exceptions=True,
            )
            failures = [(s, o) for s, o in zip(seats, outcomes, strict=True) if isinstance(o, BaseException)]
            if (failures and len(failures) == len(seats)) or not seats:
                reason = str(failures[0][1]) if failures else "no engine is left"
                self._doubt = f"weight update to version {version} failed: {reason}"
                raise WeightUpdateError(reason)
            self._committed, self._doubt = (version, source, checksum), ""
            for seat, error in failures:
                self._lose(seat, f"weight update to version {version} failed: {error}")
            for seat in seats:
                if seat.state is SeatState.PARKED:
                    await self._enlist(seat)
        self._place()

    def _received(self) -> list[Seat]:
        """Those that have begun the update and are still there, each with the engine that has."""
        usable = (SeatState.ALIVE, SeatState.PARKED)
        return [seat for seat in self._seats if seat.state in usable and (seat, seat.engine) in self._receiving]

    def _revive(self, seat: Seat) -> None:
        task = asyncio.get_running_loop().create_task(self._replace(seat))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sleep(self) -> None:
        """Let every engine give its memory back, those held out too; see `Engine.sleep`. Dead ones are replaced."""
        await self._with_all(lambda engine: engine.sleep())

    async def wake(self) -> None:
        """Take the memory again, see `Engine.wake`."""
        await self._with_all(lambda engine: engine.wake())

    async def _with_all(self, act: Callable[[Engine], Awaitable[None]]) -> None:
        seats = [seat for seat in self._seats if seat.state in (SeatState.ALIVE, SeatState.PARKED)]
        outcomes = await asyncio.gather(*(act(seat.engine) for seat in seats), return_exceptions=True)
        for seat, outcome in zip(seats, outcomes, strict=True):
            if isinstance(outcome, EngineDeadError) and seat.alive:
                self._lose(seat, str(outcome))
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, EngineDeadError):
                raise outcome

    async def states(self) -> list[EngineState]:
        """Of every engine; a dead one has no blocks and is paused."""
        states: list[EngineState] = []
        for seat in self._seats:
            if not seat.alive:
                states.append(await self._state_of_absent(seat))
                continue
            state = await seat.engine.state()
            states.append(replace(state, engine_id=seat.name, paused=state.paused or not self._resumed.is_set()))
        return states

    async def _state_of_absent(self, seat: Seat) -> EngineState:
        none = EngineState(seat.name, self.name, self._version, "", 0, 0, seat.block_tokens, 0, 0, True)
        if seat.state is not SeatState.PARKED:
            reason = "it has died too often" if seat.state is SeatState.GONE else "it has died and is started again"
            return replace(none, workers=0, held_out=reason)
        found = await seat.engine.state()
        return replace(
            none,
            workers=found.workers,
            transfer_backend=found.transfer_backend,
            sleeps=found.sleeps,
            held_out=_LACKING.format(self._version),
        )

    async def state(self) -> EngineState:
        """All engines as one: sums, and the oldest weight version of those that live."""
        states = await self.states()
        living = [state for state, seat in zip(states, self._seats, strict=True) if seat.alive] or states
        return summed_state(self.name, living, waiting=self._scheduler.waiting + self._waiting, paused=self._closed)

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start, by engines that have died too."""
        return sum(seat.tokens_generated for seat in self._seats)


async def _give_weights(engine: Engine, version: int, source: WeightSource, checksum: str) -> None:
    """A whole update of one engine, which was started after the others had begun it."""
    await engine.begin_weight_update(version, source)
    await engine.commit_weight_update(version, checksum)
