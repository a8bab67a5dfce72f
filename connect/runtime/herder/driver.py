"""Drives a herder: collects what happens, steps it one event at a time, and does what it wants done.

One named task performs the effects of an event in order before it looks at the next one, as Java's tick thread does;
what takes long is begun here, runs in a task of its own, and comes back as an event.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from typing import Any, Final, Protocol

from connect.core.errors import PermanentError, RetriableError
from connect.core.herder import events
from connect.core.herder.events import Effect, Event, Operation
from connect.core.herder.herder import Herder
from connect.core.model import State, TaskId
from connect.kafka.concurrency import Scope, in_turns
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
#: So many effects are performed before others of the loop have their turn: a round may bring thousands of tasks.
_AT_ONCE: Final = 50
_JOIN_AGAIN_S: Final = 1.0
#: A tick is never further away, so that a clock that jumps costs no more than this.
_LONGEST_SLEEP_S: Final = 5.0
_LEAVE_TIMEOUT_S: Final = 5.0
#: So many connectors are asked for their tasks at the same time.
_COMPUTED_AT_ONCE: Final = 16
#: One that has not said them by then is in nobody's way any more.
_COMPUTED_WITHIN_S: Final = 10.0


class WorkerFailed(PermanentError):
    """The worker cannot go on in its group."""


class Surroundings(Protocol):
    """What effects reach that is neither group nor config topic."""

    def start_connector(self, effect: events.StartConnector) -> None: ...

    def start_task(self, effect: events.StartTask) -> None: ...

    def reconfigure_task(self, task: TaskId) -> bool:
        """Whether a task that runs here takes its new config as it runs."""
        ...

    def write_status(self, work: str | TaskId, state: State, *, safe: bool) -> None: ...

    def forget_topics(self, connector: str) -> None: ...

    def set_level(self, namespace: str, level: str) -> None: ...

    async def send_task_configs(self, leader_url: str, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """A signed request to the leader's internal REST."""
        ...

    def stepped(self) -> None:
        """An event was handled, and its effects were performed."""
        ...


class HerderDriver:
    """One herder and what it works with. ``now_ms`` is a clock that does not jump back.

    ``name`` is what lines of the log begin with. ``last_grace_s``: how long work may take to end once the lease is
    lost; then the session is over, and others have it. ``prepare`` is awaited before the first join, and
    ``before_assigning`` before each assignment that this worker makes as leader, with the metadata of all members: what
    it writes to the config topic holds for the assignment. The owner hands in the parts that need the driver themselves
    with :meth:`connect`.
    """

    def __init__(
        self,
        herder: Herder,
        config: ConfigStore,
        stages: Stages,
        now_ms: Callable[[], int],
        *,
        name: str,
        last_grace_s: float,
        prepare: Callable[[], Awaitable[None]] | None = None,
        before_assigning: Callable[[Mapping[str, bytes]], Awaitable[None]] | None = None,
    ) -> None:
        self._prepare = prepare
        self._before_assigning = before_assigning
        self._last_grace_s = last_grace_s
        self._name = name
        self._herder = herder
        self._config = config
        self._stages = stages
        self._now_ms = now_ms
        self._group: GroupMember | None = None
        self._worker: Worker | None = None
        self._surroundings: Surroundings | None = None
        self._events: deque[Event | asyncio.Future[None]] = deque()
        self._arrived = asyncio.Event()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._scope = Scope(name)
        self._loop: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._assigning: asyncio.Future[Mapping[str, bytes]] | None = None
        self._writing = asyncio.Lock()
        self._computing = asyncio.Semaphore(_COMPUTED_AT_ONCE)
        #: Whether the group has answered us for as long as our lease goes back.
        self._leased = False
        #: Not after a lost lease, until the next round has ended: what is about to be started is no longer ours.
        self._may_start = True
        self.rebalances = Rebalances()
        #: Set once the worker has left its group, or why it cannot go on.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connect(self, group: GroupMember, worker: Worker, surroundings: Surroundings) -> None:
        """The parts that call back; before :meth:`start`."""
        self._group, self._worker, self._surroundings = group, worker, surroundings

    def start(self) -> None:
        """Begin to handle events, those put before included."""
        self._loop = self._scope.spawn(self._run(), "herder")

    def put(self, event: Event) -> None:
        """Something happened; it is handled in its turn."""
        self._events.append(event)
        self._arrived.set()

    async def request(self, operation: Operation) -> Any:
        """Ask the herder for something; raises what it refuses with. Who no longer waits is forgotten."""
        if self.ended.done():
            raise RetriableError("Worker is shutting down")
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        self.put(events.Request(number, operation))
        try:
            return await future
        finally:
            self._requests.pop(number, None)

    async def turn(self) -> None:
        """Returns once everything that happened before was handled."""
        if self.ended.done():
            raise RetriableError("Worker is shutting down")
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events.append(passed)
        self._arrived.set()
        await passed

    async def stop(self) -> None:
        """Leave the group, and end everything that is under way; the herder has stopped its work before."""
        if self._loop is None:
            return
        if not self.ended.done():
            self.put(events.Stopping())
            await asyncio.wait({self.ended})
        await self._scope.close()
        self._refuse_all()

    # -- what the group says (GroupEvents) -------------------------------------------------------------

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """We lead: the assignments of a round. Raises as ``before_assigning``."""
        if self._before_assigning is not None:
            await self._before_assigning(members)
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
        """Others may have our work from now on: it winds up at once, whatever the herder waits for at the moment."""
        assert self._worker is not None
        self._leased, self._may_start = False, False
        self._worker.wind_up(self._last_grace_s)
        self._events.appendleft(lost)
        self._arrived.set()

    # -- the loop --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        assert self._surroundings is not None
        try:
            while not self.ended.done():
                await self._wait()
                # What has happened comes first; where nothing has, it is time for what was due.
                happened = self._events.popleft() if self._events else events.Tick()
                if isinstance(happened, asyncio.Future):
                    if not happened.done():
                        happened.set_result(None)
                    continue
                async for effect in in_turns(self._herder.step(happened, self._now_ms()), _AT_ONCE):
                    await self._perform(effect)
                self._surroundings.stepped()
        except Exception as error:
            log.critical("the worker's herder has failed", exc_info=error)
            self.fail(WorkerFailed(f"the worker's herder has failed: {error!r}; this is a defect, please report it"))

    async def _wait(self) -> None:
        """Until something happened, or is due."""
        if self._events:
            # Others get their turn as well, however much happens here.
            await asyncio.sleep(0)
            return
        self._arrived.clear()
        deadline_ms = self._herder.next_deadline_ms()
        left_s = _LONGEST_SLEEP_S if deadline_ms is None else (deadline_ms - self._now_ms()) / 1000
        try:
            async with asyncio.timeout(max(min(left_s, _LONGEST_SLEEP_S), 0.001)):
                await self._arrived.wait()
        except TimeoutError:
            return

    async def _perform(self, effect: Effect) -> None:
        assert self._group is not None
        assert self._worker is not None
        assert self._surroundings is not None
        around = self._surroundings
        match effect:
            case events.Say(level, line):
                log.log(_LEVELS[level], "%s: %s", self._name, line)
            case events.Reply():
                self._reply(effect)
            case events.ReadConfig(token, timeout_ms):
                self._begin(self._read_config(token, timeout_ms), f"read config {token}")
            case events.WriteConfig():
                self._begin(self._write_config(effect), f"write config {effect.token}")
            case events.ClaimWriter():
                self._begin(self._claim_writer(), "claim the config topic")
            case events.Join(token, protocols):
                await self._end_join()
                self.rebalances.begin(self._now_ms())
                self._joining = self._begin(self._join(token, protocols), "join the group")
            case events.Leave(reason):
                await self._leave(reason)
            case events.Assign(assignments):
                if self._assigning is not None and not self._assigning.done():
                    self._assigning.set_result(assignments)
            case events.StartConnector() | events.StartTask():
                self._start(effect)
            case events.StopWork(connectors, tasks):
                with self._stages.doing("stopping connectors and tasks"):
                    await self._worker.stop_work(connectors, tasks)
                self._forget({*connectors, *tasks})
            case events.ReconfigureTasks(tasks):
                if refused := tuple(task for task in tasks if not around.reconfigure_task(task)):
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
                around.write_status(work, state, safe=safe)
            case events.ForgetTopics(name):
                around.forget_topics(name)
            case events.SetLevel(namespace, level):
                around.set_level(namespace, level)
            case events.MakeSessionKey(size):
                self.put(events.SessionKeyMade(secrets.token_bytes(size)))

    def _forget(self, stopped: Set[str | TaskId]) -> None:
        """What these told before they were down says nothing of what is started in their place."""
        self._events = deque(event for event in self._events if _teller(event) not in stopped)

    def _start(self, effect: events.StartConnector | events.StartTask) -> None:
        assert self._surroundings is not None
        if not self._may_start:
            return
        if isinstance(effect, events.StartConnector):
            self._surroundings.start_connector(effect)
        else:
            self._surroundings.start_task(effect)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._scope.spawn(self._guarded(work), name)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            log.critical("what the herder wanted could not be done", exc_info=error)
            self.fail(WorkerFailed(f"what the herder wanted could not be done: {error!r}"))

    def fail(self, error: WorkerFailed) -> None:
        """The worker cannot go on; who waits for :attr:`ended` hears why."""
        if self.ended.done():
            return
        log.critical("%s: %s", self._name, error)
        self.ended.set_exception(error)
        # It may be that nobody looks any more.
        self.ended.exception()
        if self._worker is not None:
            self._worker.wind_up(self._last_grace_s)
        self._refuse_all()

    def _refuse_all(self) -> None:
        """Nothing is answered any more."""
        unanswered = [*self._requests.values(), *(each for each in self._events if isinstance(each, asyncio.Future))]
        for future in unanswered:
            if not future.done():
                future.set_exception(RetriableError("Worker is shutting down"))
                # It may be that nobody waits any more.
                future.exception()

    def _reply(self, reply: events.Reply) -> None:
        future = self._requests.get(reply.id)
        if future is None or future.done():
            return
        if reply.error is not None:
            future.set_exception(reply.error)
        else:
            future.set_result(reply.value)

    # -- what takes long -------------------------------------------------------------------------------

    async def _read_config(self, token: int, timeout_ms: int) -> None:
        ok = True
        with self._stages.doing("reading to the end of the config topic"):
            try:
                await self._config.read_to_end(timeout_ms / 1000)
            except RetriableError as error:
                log.warning("%s", error)
                ok = False
        self.put(events.ConfigRead(token, ok))

    async def _write_config(self, effect: events.WriteConfig) -> None:
        error: Exception | None = None
        async with self._writing:
            try:
                await self._config.write(effect.steps, as_leader=effect.as_leader, leased=lambda: self._leased)
            except (RetriableError, PermanentError) as refused:
                error = refused
        self.put(events.ConfigWritten(effect.token, error))

    async def _claim_writer(self) -> None:
        async with self._writing:
            try:
                await self._config.claim()
            except (RetriableError, PermanentError) as error:
                # The first write claims it again and says so to whoever asked for it.
                log.warning("the config topic could not be claimed: %s", error)

    async def _compute_task_configs(self, token: int, name: str) -> None:
        """Ask a connector for its tasks, and tell the herder."""
        try:
            configs = await self._task_configs(name)
        except Exception as error:
            self.put(events.TaskConfigsComputed(token, name, error=error))
        else:
            self.put(events.TaskConfigsComputed(token, name, tuple(configs)))

    async def _task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        assert self._worker is not None
        async with self._computing:
            present = self._herder.snapshot.all_task_configs(name)
            asking = self._scope.spawn(self._worker.task_configs(name, present), f"tasks of {name}")
            await asyncio.wait({asking}, timeout=_COMPUTED_WITHIN_S)
        if not asking.done():
            log.warning("connector %s has not said its tasks within %g s; it is waited for", name, _COMPUTED_WITHIN_S)
        return await asking

    async def _send_task_configs(self, effect: events.SendTaskConfigs) -> None:
        assert self._surroundings is not None
        error: Exception | None = None
        try:
            await self._surroundings.send_task_configs(effect.leader_url, effect.name, effect.configs)
        except Exception as refused:
            error = refused
        self.put(events.TaskConfigsSent(effect.token, effect.name, error))

    async def _join(self, token: int, protocols: Sequence[tuple[str, bytes]]) -> None:
        assert self._group is not None
        if self._prepare is not None:
            await self._prepare()
            self._prepare = None
        while True:
            try:
                with self._stages.doing("ensuring membership in the cluster"):
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
        self.rebalances.end(self._now_ms())
        self._may_start = True
        self.put(events.Joined(token, made.generation, made.member, made.leader, made.protocol, made.assignment))

    async def _end_join(self) -> None:
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)

    async def _leave(self, reason: str) -> None:
        assert self._group is not None
        await self._end_join()
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._group.leave(reason)
        except (TimeoutError, RetriableError, PermanentError) as error:
            log.warning("the group could not be left in order: %s", error)
        if self._herder.is_stopping and not self.ended.done():
            self.ended.set_result(None)


def _teller(event: Event | asyncio.Future[None]) -> str | TaskId | None:
    """The connector or the task of this worker that the event is of; None for all others."""
    match event:
        case events.ScheduleAutoRestart(work):
            return work
        case events.ConnectorFailed(connector) | events.TaskConfigsWanted(connector):
            return connector
    return None
