"""Drives a herder: queues events, steps the herder one event at a time, and performs its effects.

One named task performs the effects of an event in order before it takes the next event, as Java's tick thread does.
Long operations run in tasks of their own, and their results come back as events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from connect.core.errors import PermanentError, RetriableError
from connect.core.herder import events
from connect.core.herder.events import Effect, Event, HerderOperation
from connect.core.herder.herder import Herder
from connect.core.model import State, TaskId
from connect.kafka.concurrency import Scope, in_turns, is_set_within, settle
from connect.kafka.group_member import GroupMember
from connect.runtime.herder.config_and_status_topics import ConfigStore
from connect.runtime.herder.rebalance_stages import Rebalances, Stages
from connect.runtime.worker import Worker

log = logging.getLogger(__name__)

_LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_JOIN_AGAIN_S: Final = 1.0
#: Longest time between ticks, which bounds the effect of a clock that jumps.
_LONGEST_SLEEP_S: Final = 5.0
_LEAVE_TIMEOUT_S: Final = 5.0
#: Longest wait for the answer to a request: REST's limit, also for requests of the worker itself. What is begun later
#: may undo what another leader has done since.
_REQUEST_TIMEOUT_S: Final = 90.0
#: Connectors that compute task configs at the same time.
_COMPUTED_AT_ONCE: Final = 16
#: A connector that takes longer no longer counts among them.
_COMPUTED_WITHIN_S: Final = 10.0


class WorkerFailed(PermanentError):
    """The worker cannot stay in its group."""


class Effects(Protocol):
    """What effects use besides the group and the config topic."""

    def start_connector(self, effect: events.StartConnector) -> None: ...

    def start_task(self, effect: events.StartTask) -> None: ...

    def reconfigure_task(self, task: TaskId) -> bool:
        """Return whether a running task accepts its new config without a restart."""

    def write_status(self, work: str | TaskId, state: State, *, safe: bool) -> None: ...

    def forget_topics(self, connector: str) -> None: ...

    def set_level(self, namespace: str, level: str) -> None: ...

    async def send_task_configs(self, leader_url: str, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Send a signed request to the leader's internal REST API."""

    def stepped(self) -> None:
        """Note that an event was handled and its effects performed."""


@dataclass(eq=False)
class HerderDriver:
    """One herder and what it works with. ``now_ms`` is a monotonic clock. ``name`` is the prefix of log lines.
    ``last_grace_s`` is the time for work to end after the lease is lost; then the session expires and other workers
    take over. ``prepare`` is awaited before the first join, and ``before_assigning``, with the metadata of all members,
    before each assignment that this worker makes as leader: the assignment includes what it writes to the config topic.
    The owner passes the parts that need the driver with :meth:`connect`."""

    herder: Herder
    config: ConfigStore
    stages: Stages
    now_ms: Callable[[], int]
    name: str
    last_grace_s: float
    prepare: Callable[[], Awaitable[None]] | None = None
    before_assigning: Callable[[Mapping[str, bytes]], Awaitable[None]] | None = None
    _group: GroupMember = field(init=False)
    _worker: Worker = field(init=False)
    _effects: Effects = field(init=False)
    rebalances: Rebalances = field(default_factory=Rebalances, init=False)

    def __post_init__(self) -> None:
        self._events: deque[Event | asyncio.Future[None]] = deque()
        self._arrived = asyncio.Event()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._scope = Scope(self.name)
        self._loop: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._assigning: asyncio.Future[Mapping[str, bytes]] | None = None
        self._writing = asyncio.Lock()
        self._computing = asyncio.Semaphore(_COMPUTED_AT_ONCE)
        #: Whether the group has answered us within the time of the lease.
        self._leased = False
        #: False from a lost lease to the end of the next rebalance: work about to start is no longer ours.
        self._may_start = True
        #: Done once the worker has left its group; fails with the reason if it cannot stay.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connect(self, group: GroupMember, worker: Worker, effect_handler: Effects) -> None:
        """Set the parts that call back; call it before :meth:`start`."""
        self._group, self._worker, self._effects = group, worker, effect_handler

    def start(self) -> None:
        """Begin to handle events, also those put before."""
        self._loop = self._scope.spawn(self._run(), "herder")

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    async def request(self, operation: HerderOperation) -> Any:
        """Pass a request to the herder and return its answer. If it is cancelled or takes too long, the request is
        withdrawn. Raises HeliographError if the herder refuses, and RetriableError if the worker is shutting down, or
        there was no answer within 90 s."""
        if self.ended.done():
            raise RetriableError("Worker is shutting down")
        request = events.Request(next(self._ids), operation)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[request.id] = future
        self.put(request)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S) as timeout:
                return await future
        except TimeoutError:
            if not timeout.expired():
                raise
            self._withdraw(request)
            raise RetriableError("Request timed out") from None
        except asyncio.CancelledError:
            self._withdraw(request)
            raise
        finally:
            self._requests.pop(request.id, None)

    def _withdraw(self, request: events.Request) -> None:
        try:
            self._events.remove(request)
        except ValueError:
            self.put(events.RequestWithdrawn(request.id))

    async def turn(self) -> None:
        """Return once all events queued before were handled."""
        if self.ended.done():
            raise RetriableError("Worker is shutting down")
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events.append(passed)
        self._arrived.set()
        await passed

    async def stop(self) -> None:
        """Leave the group, and end all running operations; the herder has stopped its connectors and tasks before."""
        if self._loop is None:
            return
        if not self.ended.done():
            self.put(events.Stopping())
            await asyncio.wait({self.ended})
        await self._scope.close()
        self._refuse_all()

    # -- callbacks of the group (GroupEvents) ----------------------------------------------------------

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the assignments of a rebalance that we lead. Raises what ``before_assigning`` raises."""
        if self.before_assigning is not None:
            await self.before_assigning(members)
        self._assigning = asyncio.get_running_loop().create_future()
        self.put(events.LeaderElected(protocol, leader, members))
        return await self._assigning

    def rebalance_begun(self) -> None:
        self.put(events.RebalanceBegun())

    def membership_lost(self, reason: str) -> None:
        self._give_up(events.MembershipLost(reason))

    def lease_lost(self) -> None:
        self._give_up(events.LeaseLost())

    def heartbeat_answered(self) -> None:
        self._leased = True

    def _give_up(self, lost: Event) -> None:
        """Begin to stop all work at once, even if the herder is waiting, because other workers may take it over."""
        self._leased, self._may_start = False, False
        self._worker.shut_down(self.last_grace_s)
        self._events.appendleft(lost)
        self._arrived.set()

    # -- the loop --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self.ended.done():
                await self._wait()
                # Queued events come first; without any, due work is next.
                happened = self._events.popleft() if self._events else events.Tick()
                if isinstance(happened, asyncio.Future):
                    if not happened.done():
                        happened.set_result(None)
                    continue
                async for effect in in_turns(self.herder.step(happened, self.now_ms())):
                    await self._perform(effect)
                self._effects.stepped()
        except Exception as error:
            log.critical("the worker's herder has failed", exc_info=error)
            self.fail(WorkerFailed(f"the worker's herder has failed: {error!r}. This is a bug; please report it."))

    async def _wait(self) -> None:
        if self._events:
            # Other tasks of the loop get turns too, however many events are queued.
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        deadline_ms = self.herder.next_deadline_ms()
        left_s = _LONGEST_SLEEP_S if deadline_ms is None else (deadline_ms - self.now_ms()) / 1000
        await is_set_within(self._arrived, max(min(left_s, _LONGEST_SLEEP_S), 0.001))

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case events.Say(level, line):
                log.log(_LEVELS[level], "%s: %s", self.name, line)
            case events.Reply(request, value, error):
                if (future := self._requests.get(request)) is not None:
                    settle(future, value, error)
            case events.ReadConfig(token, timeout_ms):
                self._begin(self._read_config(token, timeout_ms), f"read config {token}")
            case events.WriteConfig():
                self._begin(self._write_config(effect), f"write config {effect.token}")
            case events.ClaimWriter():
                self._begin(self._claim_writer(), "claim the config topic")
            case events.Join(token, protocols):
                await self._end_join()
                self.rebalances.begin(self.now_ms())
                self._joining = self._begin(self._join(token, protocols), "join the group")
            case events.Leave(reason):
                await self._leave(reason)
            case events.Assign(assignments):
                if self._assigning is not None and not self._assigning.done():
                    self._assigning.set_result(assignments)
            case events.StartConnector():
                if self._may_start:
                    self._effects.start_connector(effect)
            case events.StartTask():
                if self._may_start:
                    self._effects.start_task(effect)
            case events.StopWork(connectors, tasks):
                with self.stages.doing("stopping connectors and tasks"):
                    await self._worker.stop_work(connectors, tasks)
                self._forget({*connectors, *tasks})
            case events.ReconfigureTasks(tasks):
                if refused := tuple(task for task in tasks if not self._effects.reconfigure_task(task)):
                    self.put(events.ReconfigurationRefused(refused))
            case events.ChangeTarget(name, target):
                self._worker.set_target(name, target)
            case events.ComputeTaskConfigs(token, name):
                self._begin(self._compute_task_configs(token, name), f"configure the tasks of {name}")
            case events.SendTaskConfigs():
                self._begin(self._send_task_configs(effect), f"send the task configs of {effect.name}")
            case events.FailConnector(name, error):
                self._worker.fail_connector(name, error)
            case events.WriteStatus(work, state, safe):
                self._effects.write_status(work, state, safe=safe)
            case events.ForgetTopics(name):
                self._effects.forget_topics(name)
            case events.SetLevel(namespace, level):
                self._effects.set_level(namespace, level)
            case events.MakeSessionKey(size):
                self.put(events.SessionKeyMade(secrets.token_bytes(size)))

    def _forget(self, stopped: Set[str | TaskId]) -> None:
        """Drop events that stopped connectors and tasks queued before: they do not concern their successors."""
        self._events = deque(event for event in self._events if _log_forwarder(event) not in stopped)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._scope.spawn(self._guarded(work), name)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            log.critical("an operation of the herder has failed", exc_info=error)
            self.fail(WorkerFailed(f"an operation of the herder has failed: {error!r}"))

    def fail(self, error: WorkerFailed) -> None:
        """Stop the worker for this reason; :attr:`ended` raises it."""
        if self.ended.done():
            return
        log.critical("%s: %s", self.name, error)
        self.ended.set_exception(error)
        # Marks the exception as retrieved, in case nothing awaits it.
        self.ended.exception()
        self._worker.shut_down(self.last_grace_s)
        self._refuse_all()

    def _refuse_all(self) -> None:
        unanswered = [*self._requests.values(), *(each for each in self._events if isinstance(each, asyncio.Future))]
        for future in unanswered:
            if not future.done():
                future.set_exception(RetriableError("Worker is shutting down"))
                # Marks the exception as retrieved, in case nothing awaits it.
                future.exception()

    # -- long operations -------------------------------------------------------------------------------

    async def _read_config(self, token: int, timeout_ms: int) -> None:
        ok = True
        with self.stages.doing("reading to the end of the config topic"):
            try:
                await self.config.read_to_end(timeout_ms / 1000)
            except RetriableError as error:
                log.warning("%s", error)
                ok = False
        self.put(events.ConfigRead(token, ok))

    async def _write_config(self, effect: events.WriteConfig) -> None:
        error: Exception | None = None
        async with self._writing:
            try:
                await self.config.write(effect.steps, as_leader=effect.as_leader, leased=lambda: self._leased)
            except (RetriableError, PermanentError) as refused:
                error = refused
        self.put(events.ConfigWritten(effect.token, error))

    async def _claim_writer(self) -> None:
        async with self._writing:
            try:
                await self.config.claim()
            except (RetriableError, PermanentError) as error:
                # The first write retries the claim and reports its error to the requester.
                log.warning("the config topic could not be claimed: %s", error)

    async def _compute_task_configs(self, token: int, name: str) -> None:
        try:
            configs = await self._task_configs(name)
        except Exception as error:
            self.put(events.TaskConfigsComputed(token, name, error=error))
        else:
            self.put(events.TaskConfigsComputed(token, name, tuple(configs)))

    async def _task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        async with self._computing:
            present = self.herder.snapshot.all_task_configs(name)
            asking = self._scope.spawn(self._worker.task_configs(name, present), f"tasks of {name}")
            await asyncio.wait({asking}, timeout=_COMPUTED_WITHIN_S)
        if not asking.done():
            log.warning("connector %s has not returned its task configs after %g s; waiting", name, _COMPUTED_WITHIN_S)
        return await asking

    async def _send_task_configs(self, effect: events.SendTaskConfigs) -> None:
        error: Exception | None = None
        try:
            await self._effects.send_task_configs(effect.leader_url, effect.name, effect.configs)
        except Exception as refused:
            error = refused
        self.put(events.TaskConfigsSent(effect.token, effect.name, error))

    async def _join(self, token: int, protocols: Sequence[tuple[str, bytes]]) -> None:
        if self.prepare is not None:
            await self.prepare()
            self.prepare = None
        while True:
            try:
                with self.stages.doing("ensuring membership in the cluster"):
                    made = await self._group.join(protocols)
            except RetriableError as error:
                log.warning("%s; joining again", error)
                await asyncio.sleep(_JOIN_AGAIN_S)
            except PermanentError as error:
                self.fail(WorkerFailed(f"the worker cannot join its group: {error}"))
                return
            else:
                break
        self._leased = True
        self.rebalances.end(self.now_ms())
        self._may_start = True
        self.put(events.Joined(token, made.generation, made.member, made.leader, made.protocol, made.assignment))

    async def _end_join(self) -> None:
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)

    async def _leave(self, reason: str) -> None:
        await self._end_join()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._group.leave(reason)
        except (TimeoutError, RetriableError, PermanentError) as error:
            log.warning("could not leave the group cleanly: %s", error)
        if self.herder.is_stopping and not self.ended.done():
            self.ended.set_result(None)


def _log_forwarder(event: Event | asyncio.Future[None]) -> str | TaskId | None:
    """Return the connector or task of this worker that queued the event; None for other events."""
    match event:
        case events.ScheduleAutoRestart(work):
            return work
        case events.ConnectorFailed(connector) | events.TaskConfigsWanted(connector):
            return connector
    return None
