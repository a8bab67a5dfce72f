"""Performs a herder's effects on its worker: starts work, reports statuses, restarts and fences.

* One class is the driver's ``Effects`` and the worker's ``WorkerListener``, because both end in statuses.
* Automatic restarts: the worker that runs a connector or task knows its error, so it decides and restarts. The decision
  is in the status topic, from which the next owner reads it after a rebalance.
* Zombie fencing by the leader: under exactly-once, the producers of all older generations are fenced before tasks of a
  new generation start (KIP-618, Kafka's ``DistributedHerder.fenceZombieSourceTasks``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from connect.core.audit import EVENT, SUBJECT, state_changed
from connect.core.config.connector_settings import AutoRestartRule
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError, RetriableError
from connect.core.herder import events
from connect.core.herder.herder import Herder
from connect.core.herder_api import BadRequest, Config, ConfigInfos, ElsewhereError, NotFound, RequestConflict, Sign
from connect.core.model import Restarts, State, Status, TaskId, connector_of
from connect.core.status_and_offset_topics import StatusLog, TopicUse
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Backoff, Scope, retried, together, within
from connect.kafka.log.transactions import init_producer_id
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.runtime.herder.config_and_status_topics import ConfigStore, StatusStore
from connect.runtime.herder.driver import HerderDriver
from connect.runtime.herder.loggers import Loggers
from connect.runtime.task.client_configs import task_transactional_id
from connect.runtime.task.task_control import FailureTrace
from connect.runtime.task_builder import TaskSpec
from connect.runtime.worker import Worker

log = logging.getLogger(__name__)


class AutoRestarts:
    """Automatic restarts of one worker's connectors and tasks. ``configs``: returns the config topic as read.
    ``now_ms``: wall clock, in milliseconds since 1970."""

    def __init__(self, configs: Callable[[], ConfigLog], statuses: StatusLog, now_ms: Callable[[], int]) -> None:
        self._configs = configs
        self._statuses = statuses
        self._now_ms = now_ms
        self._last: dict[str | TaskId, Restarts] = {}
        #: Number of restarts that this worker has decided.
        self.totals: dict[str | TaskId, int] = {}

    def last(self, work: str | TaskId) -> Restarts | None:
        """Return the last decision of this or the previous owner; None without one, or if the config allows none."""
        return None if self._rule(connector_of(work)) is None else self._last_of(work)

    def _last_of(self, work: str | TaskId) -> Restarts | None:
        status = self._statuses.status(work)
        known = (self._last.get(work), None if status is None else status.restarts)
        return max((each for each in known if each is not None), key=lambda each: each.at_ms, default=None)

    def failed(self, work: str | TaskId, *, may_recover: bool) -> int | None:
        """Decide what follows a failure. Return how long to wait before the restart, in ms; None: no restart."""
        rule = self._rule(connector_of(work))
        if rule is None:
            return None
        now_ms = self._now_ms()
        after = rule.after_failure(self._last_of(work) or Restarts(), now_ms, may_recover=may_recover)
        self._forget_deleted()
        self._last[work] = after
        kind = "connector" if isinstance(work, str) else "task"
        if after.given_up is not None:
            said = "%s %s is not restarted automatically: %s"
            state_changed(log, logging.ERROR, "restarts-given-up", str(work), said, kind, work, after.given_up)
            return None
        self.totals[work] = self.totals.get(work, 0) + 1
        wait_ms = max(0, after.at_ms - now_ms)
        said, about = "%s %s: automatic restart %d in a row in %d s", (kind, work, after.count, wait_ms / 1000)
        state_changed(log, logging.WARNING, "automatic-restart", str(work), said, *about)
        return wait_ms

    def _rule(self, connector: str) -> AutoRestartRule | None:
        try:
            return AutoRestartRule.of(self._configs().connector_config(connector) or {})
        except ConfigError as error:
            log.error("connector %s is not restarted automatically: %s", connector, error)
            return None

    def _forget_deleted(self) -> None:
        configs = self._configs()
        for work in [each for each in self._last if connector_of(each) not in configs]:
            del self._last[work]
            self.totals.pop(work, None)


_TIMEOUT_S: Final = 90.0
#: Transactional ids fenced at once.
_AT_ONCE: Final = 16


#: A connector and the generation of its tasks.
_Key = tuple[str, int | None]


@dataclass(eq=False)
class ZombieFence:
    """Zombie fencing of connectors; concurrent requests for one connector share a round. ``connection``: returns the
    connection to the target of a connector (name, raw config). ``is_source``: whether a raw config is a source
    connector's."""

    group_id: str
    core: Herder
    driver: HerderDriver
    config: ConfigStore
    connection: Callable[[str, Mapping[str, str]], Awaitable[ConnectionSettings]]
    is_source: Callable[[Mapping[str, str]], bool]
    _scope: Scope = field(default_factory=lambda: Scope("fencing"), init=False)
    _rounds: dict[_Key, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def fence(self, name: str) -> None:
        """Return once no older task of the connector can write. Raises NotLeader if another worker leads, NotFound or
        BadRequest if there is no such source connector, RequestConflict if its tasks were reconfigured meanwhile, and
        RetriableError if it took too long, or the cluster did not answer."""
        # As an event, because a follower may send a request before this worker knows that it leads.
        await self.driver.request(events.CheckFence(name))
        config = self.core.snapshot.connector_config(name)
        if config is None:
            raise NotFound(f"Connector {name} not found")
        if not self.is_source(config):
            raise BadRequest(f"Connector {name} is not a source connector")
        # A round for older tasks fails in the end, so newer tasks must not share it.
        key = (name, self.core.snapshot.task_generation(name))
        running = self._rounds.get(key)
        if running is None:
            running = self._scope.spawn(self._round(name), f"fence {name}")
            self._rounds[key] = running
            running.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(running)

    async def stop(self) -> None:
        await self._scope.close()

    def _ended(self, key: _Key, done: asyncio.Task[None]) -> None:
        self._rounds.pop(key, None)
        if not done.cancelled():
            done.exception()

    async def _round(self, name: str) -> None:
        async with within(_TIMEOUT_S, f"connector {name}: its older tasks were not fenced"):
            while not await self._counted(name):
                pass

    async def _counted(self, name: str) -> bool:
        """Fence older tasks and store how many there are now; return False if both must be repeated."""
        await self.config.read_to_end(_TIMEOUT_S)
        snapshot = self.core.snapshot
        if not snapshot.pending_fencing(name):
            return True
        config = snapshot.connector_config(name)
        if config is None:
            raise NotFound(f"Connector {name} not found")
        generation, count = snapshot.task_generation(name), snapshot.task_count(name)
        before = snapshot.task_count_record(name)
        # One task before and one now: the new task's claim of the transactional id fences the old one.
        older = 0 if before is None or (before == 1 and count == 1) else before
        if older:
            await self._fence_tasks(name, config, older)
        if snapshot.task_generation(name) != generation or generation is None:
            raise RequestConflict(f"The tasks of connector {name} were reconfigured while they were fenced")
        try:
            await self.driver.request(events.PutTaskCount(name, count, generation))
        except RequestConflict:
            if older:
                raise
            # Without tasks to fence, Java reads and writes in one turn of its herder, and meets no newer configs.
            return False
        return True

    async def _fence_tasks(self, name: str, config: Mapping[str, str], tasks: int) -> None:
        cluster = Cluster(await self.connection(name, config))

        async def claim(task: int) -> None:
            await init_producer_id(cluster, task_transactional_id(self.group_id, name, task), timeout_s=_TIMEOUT_S)

        try:
            for first in range(0, tasks, _AT_ONCE):
                await together(f"fence {name}", map(claim, range(first, min(first + _AT_ONCE, tasks))))
        finally:
            await cluster.close()
        log.info("connector %s: fenced the producers of its %d former tasks", name, tasks)


#: Java's safe states: the current owner's status takes precedence (``StatusBackingStore.putSafe``).
_SAFE: Final = (State.UNASSIGNED, State.FAILED)

#: Time for a group without a leader to agree on one, and for that leader's round of fencing.
_FENCE_S: Final = 120.0
#: After this time the request is repeated: a frozen leader does not answer, and another one shares a running round.
_FENCE_ANSWER_S: Final = 20.0
_AGAIN_FIRST_MS: Final = 100
_AGAIN_LAST_MS: Final = 2000
#: Interval of checks whether the leader of a pending request was replaced.
_LEADER_LOOK_S: Final = 1.0


class NoLeader(RetriableError):
    """The group has no known leader."""


class TaskOutdated(RetriableError):
    """A task was reconfigured or reassigned while it started."""


class InternalRequests(Protocol):
    """Requests to other workers of the group; ``sign`` returns the headers for a body, None: unsigned."""

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None: ...

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        """Raises RetriableError if the leader does not answer, or is busy with a round."""

    async def validate(self, url: str, connector_class: str, config: Config) -> ConfigInfos | None:
        """Return how the worker at ``url`` validates a connector's config; None if it does not have the class. Raises
        RetriableError if it does not answer, HeliographError if it refuses."""

    async def has_class(self, url: str, connector_class: str) -> bool:
        """Return whether the worker at ``url`` has a class. Errors as :meth:`validate`."""


@dataclass(eq=False)
class EffectHandler:
    """The effects outside group and config topic, and the events of connectors and tasks. ``worker_id``: the author in
    statuses. ``now_ms``: wall clock, in milliseconds since 1970. ``changed``: called after every event of the
    herder."""

    config: WorkerConfig
    core: Herder
    driver: HerderDriver
    config_store: ConfigStore
    statuses: StatusStore
    restarts: AutoRestarts
    fence: ZombieFence
    internal: InternalRequests
    loggers: Loggers
    worker_id: str
    now_ms: Callable[[], int]
    changed: Callable[[], None]
    #: Set by the owner, because a worker needs its listener first.
    worker: Worker = field(init=False)

    # -- effects of the herder -------------------------------------------------------------------------

    def start_connector(self, effect: events.StartConnector) -> None:
        props = self.core.snapshot.connector_config(effect.name)
        assert props is not None
        self.worker.start_connector(effect.name, props, effect.target)

    def start_task(self, effect: events.StartTask) -> None:
        spec = self._spec(effect.task)
        assert spec is not None
        if self.config.exactly_once_enabled:
            connector = effect.task.connector
            generation = self.core.snapshot.task_generation(connector)
            spec = replace(
                spec,
                before=lambda: self._fence_older(connector),
                after=lambda: self._check_newest(effect.task, generation),
            )
        self.worker.start_task(spec, effect.target)

    def reconfigure_task(self, task: TaskId) -> bool:
        spec = self._spec(task)
        return spec is not None and self.worker.reconfigure_task(spec)

    def _spec(self, task: TaskId) -> TaskSpec | None:
        snapshot = self.core.snapshot
        connector, props = snapshot.connector_config(task.connector), snapshot.task_config(task)
        if connector is None or props is None:
            return None
        return TaskSpec(task, connector, props, snapshot.task_count(task.connector))

    def write_status(self, work: str | TaskId, state: State, *, safe: bool) -> None:
        status = Status(state, self.worker_id, self.core.generation, restarts=self.restarts.last(work))
        self.statuses.put(work, status, safe=safe)

    def forget_topics(self, connector: str) -> None:
        self.statuses.forget_topics(connector)

    def set_level(self, namespace: str, level: str) -> None:
        try:
            changed = self.loggers.set(namespace, level)
        except NotFound as error:
            log.warning("the group's level of %s was not set here: %s", namespace, error)
            return
        log.info("the group's level of %s was set to %s; %d loggers changed here", namespace, level, len(changed))

    async def send_task_configs(self, leader_url: str, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Wait until the leader answers (a retry would be written twice), or another worker leads."""
        request = self.internal.post_task_configs(leader_url, name, configs, self.core.signer())
        async with Scope(f"task configs of {name}") as scope:
            sending = scope.spawn(request, f"task configs of {name} to {leader_url}")
            while not sending.done():
                if self.core.leader_url not in (leader_url, None):
                    raise RetriableError(
                        f"connector {name}: {leader_url} no longer leads and did not answer whether it took the task "
                        "configs"
                    )
                await asyncio.wait({sending}, timeout=_LEADER_LOOK_S)
            await sending

    def stepped(self) -> None:
        self.changed()

    # -- events of connectors and tasks ----------------------------------------------------------------

    def connector_failed(self, name: str) -> None:
        self.driver.put(events.ConnectorFailed(name))

    def task_configs_wanted(self, name: str) -> None:
        self.driver.put(events.TaskConfigsWanted(name))

    def topic_used(self, topic: str, task: TaskId) -> None:
        if self.config.topic_tracking_enable:
            self.statuses.topic_used(TopicUse(topic, task.connector, task.task, self.now_ms()))

    def reported(self, work: str | TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        wait_ms = None
        if failure is not None and not failure.is_at_end:
            wait_ms = self.restarts.failed(work, may_recover=failure.may_recover)
        restarts = self.restarts.last(work)
        if restarts is not None:
            self.driver.put(events.ScheduleAutoRestart(work, wait_ms))
        if state is not State.FAILED:  # the failure has its own line
            kind = "connector" if isinstance(work, str) else "task"
            extra = {EVENT: f"{kind}-{state.lower()}", SUBJECT: str(work)}
            log.info("%s: %s %s is %s", self.driver.name, kind, work, state, extra=extra)
        trace = None if failure is None else failure.trace
        status = Status(state, self.worker_id, self.core.generation, trace, version, restarts)
        self.statuses.put(work, status, safe=state in _SAFE)

    # -- exactly-once ----------------------------------------------------------------------------------

    async def _fence_older(self, connector: str) -> None:
        """Have the leader fence all older tasks; retry while the group gets a new leader."""
        clock = asyncio.get_running_loop().time
        backoff = Backoff(log, f"fence {connector}", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        give_up_s = clock() + _FENCE_S
        while True:
            try:
                async with within(_FENCE_ANSWER_S, f"connector {connector}: its older tasks were not fenced"):
                    return await self._fence_by_leader(connector)
            except (RetriableError, ElsewhereError, RequestConflict) as error:
                refusal = error
            if clock() > give_up_s:
                raise refusal
            await backoff.after(refusal)

    async def _fence_by_leader(self, connector: str) -> None:
        if self.core.is_leader:
            await self.fence.fence(connector)
            return
        url = self.core.leader_url
        if url is None:
            raise NoLeader(f"connector {connector}: its older tasks cannot be fenced: the group has no leader")
        await self.internal.put_fence(url, connector, self.core.signer())

    async def _check_newest(self, task: TaskId, generation: int | None) -> None:
        """Check, once the task's transactional id is claimed, that the task is still ours and its configs the newest.
        While the topic cannot be read it waits, as Java does, without limit."""
        backoff = Backoff(log, f"check whether task {task} is still ours", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        await retried(partial(self.config_store.read_to_end, self.config.sync_timeout_ms / 1000), backoff.after)
        await self.driver.turn()
        if self.core.snapshot.task_generation(task.connector) != generation or task not in self.core.assignment.tasks:
            raise TaskOutdated(f"task {task} was reconfigured or given to another worker while it started")
