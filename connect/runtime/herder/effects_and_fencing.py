"""Connects a herder to the work on its worker: it starts work, reports statuses, restarts and fences.

* One class is the driver's ``Surroundings`` and the worker's ``WorkerListener``, because both end in statuses.
* Automatic restarts: the worker that runs a connector or a task knows its error, so it decides and restarts. The
  decision is in the status topic, and the next owner finds it there after a rebalance.
* Rounds of fencing, which the leader performs: under exactly-once, the producers of all older generations are fenced
  before tasks of a new generation start (KIP-618, Kafka's ``DistributedHerder.fenceZombieSourceTasks``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from connect.core import herder_api
from connect.core.config.connector_settings import AutoRestartRule
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError, RetriableError
from connect.core.herder import events
from connect.core.herder.herder import Herder
from connect.core.herder.membership import SESSIONED
from connect.core.herder_api import BadRequest, ElsewhereError, NotFound, RequestConflict
from connect.core.model import Restarts, State, Status, TaskId, connector_of
from connect.core.status_and_offset_topics import StatusLog, TopicUse
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Patience, Scope, together
from connect.kafka.log.transactions import init_producer_id
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.runtime.herder.config_and_status_topics import ConfigStore, StatusStore
from connect.runtime.herder.driver import HerderDriver
from connect.runtime.herder.loggers import Loggers
from connect.runtime.task.client_configs import task_transactional_id
from connect.runtime.task.task_control import FailureTrace
from connect.runtime.worker import Worker

log = logging.getLogger(__name__)


class AutoRestarts:
    """Of one worker.

    Args:
        configs: Returns the config topic as it was read.
        now_ms: The wall clock, in milliseconds since 1970.
    """

    def __init__(self, configs: Callable[[], ConfigLog], statuses: StatusLog, now_ms: Callable[[], int]) -> None:
        self._configs = configs
        self._statuses = statuses
        self._now_ms = now_ms
        self._last: dict[str | TaskId, Restarts] = {}
        #: How many restarts this worker has decided on.
        self.totals: dict[str | TaskId, int] = {}

    def last(self, work: str | TaskId) -> Restarts | None:
        """Return the restarts in a row as this worker or the owner before it has decided last; None: there were none,
        or the connector's config allows none."""
        return None if self._rule(connector_of(work)) is None else self._last_of(work)

    def _last_of(self, work: str | TaskId) -> Restarts | None:
        status = self._statuses.status(work)
        known = (self._last.get(work), None if status is None else status.restarts)
        return max((each for each in known if each is not None), key=lambda each: each.at_ms, default=None)

    def failed(self, work: str | TaskId, *, may_recover: bool) -> int | None:
        """Decide what follows a failure. Returns how long to wait for the restart, in ms; None: there is none."""
        rule = self._rule(connector_of(work))
        if rule is None:
            return None
        now_ms = self._now_ms()
        after = rule.after_failure(self._last_of(work) or Restarts(), now_ms, may_recover=may_recover)
        self._forget_deleted()
        self._last[work] = after
        kind = "connector" if isinstance(work, str) else "task"
        if after.given_up is not None:
            log.error("%s %s is not restarted automatically: %s", kind, work, after.given_up)
            return None
        self.totals[work] = self.totals.get(work, 0) + 1
        wait_ms = max(0, after.at_ms - now_ms)
        log.warning("%s %s: automatic restart %d in a row in %d s", kind, work, after.count, wait_ms / 1000)
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
#: So many ids are asked for at once.
_AT_ONCE: Final = 16


#: A connector and the generation of its tasks.
_Key = tuple[str, int | None]


class ZombieFence:
    """Fences for connectors; requests for one connector that come meanwhile share the round.

    Args:
        connection: How the target of a connector (name, raw config) is reached for it.
        is_source: Whether a raw config is a source connector's.
    """

    def __init__(
        self,
        group_id: str,
        core: Herder,
        driver: HerderDriver,
        config: ConfigStore,
        connection: Callable[[str, Mapping[str, str]], ConnectionSettings],
        is_source: Callable[[Mapping[str, str]], bool],
    ) -> None:
        self._group_id = group_id
        self._core = core
        self._driver = driver
        self._config = config
        self._connection = connection
        self._is_source = is_source
        self._scope = Scope("fencing")
        self._rounds: dict[_Key, asyncio.Task[None]] = {}

    async def fence(self, name: str) -> None:
        """Returns once no older task of the connector can write.

        Raises:
            NotLeader: Another worker leads.
            NotFound, BadRequest: There is no such connector, or it is none of sources.
            RequestConflict: Its tasks were configured anew meanwhile.
            RetriableError: It took too long, or the cluster does not answer.
        """
        # In its turn: a follower may know of a round, and ask, before we have heard that we lead by it.
        await self._driver.request(events.CheckFence(name))
        config = self._core.snapshot.connector_config(name)
        if config is None:
            raise NotFound(f"Connector {name} not found")
        if not self._is_source(config):
            raise BadRequest(f"Connector {name} is not a source connector")
        # A round for older tasks refuses in the end, which newer tasks must not share.
        key = (name, self._core.snapshot.task_generation(name))
        running = self._rounds.get(key)
        if running is None:
            running = self._scope.spawn(self._round(name, config), f"fence {name}")
            self._rounds[key] = running
            running.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(running)

    async def stop(self) -> None:
        await self._scope.close()

    def _ended(self, key: _Key, done: asyncio.Task[None]) -> None:
        self._rounds.pop(key, None)
        if not done.cancelled():
            done.exception()

    async def _round(self, name: str, config: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._config.read_to_end(_TIMEOUT_S)
                snapshot = self._core.snapshot
                if not snapshot.pending_fencing(name):
                    return
                generation, count = snapshot.task_generation(name), snapshot.task_count(name)
                before = snapshot.task_count_record(name)
                # One task before and one now: the new one's own claim shuts the old one out.
                if before is not None and not (before == 1 and count == 1):
                    await self._shut_out(name, config, before)
                if snapshot.task_generation(name) != generation or generation is None:
                    raise RequestConflict(f"The tasks of connector {name} were configured anew while they were fenced")
                await self._driver.request(events.PutTaskCount(name, count, generation))
        except TimeoutError as error:
            raise RetriableError(
                f"connector {name}: its older tasks were not fenced within {_TIMEOUT_S:.0f} s"
            ) from error

    async def _shut_out(self, name: str, config: Mapping[str, str], tasks: int) -> None:
        cluster = Cluster(self._connection(name, config))

        async def claim(task: int) -> None:
            await init_producer_id(cluster, task_transactional_id(self._group_id, name, task), timeout_s=_TIMEOUT_S)

        try:
            for first in range(0, tasks, _AT_ONCE):
                await together(f"fence {name}", map(claim, range(first, min(first + _AT_ONCE, tasks))))
        finally:
            await cluster.close()
        log.info("connector %s: the producers of its %d former tasks are fenced off", name, tasks)


SIGNATURE_HEADER: Final = "X-Connect-Authorization"
ALGORITHM_HEADER: Final = "X-Connect-Request-Signature-Algorithm"
#: Java's safe states: whoever owns the work by now knows better (``StatusBackingStore.putSafe``).
_SAFE: Final = (State.UNASSIGNED, State.FAILED)

#: Time for a group that has just lost its leader to agree on another, and for that one's round of fencing.
_FENCE_S: Final = 120.0
#: A leader that froze, or was cut off, answers nobody; who has come in its place shares a round that goes on already.
_FENCE_ANSWER_S: Final = 20.0
_AGAIN_FIRST_MS: Final = 100
_AGAIN_LAST_MS: Final = 2000
#: How soon a request to a leader that has gone silent learns that another one has come.
_LEADER_LOOK_S: Final = 1.0

Sign = Callable[[bytes], Mapping[str, str]]


class NoLeader(RetriableError):
    """Nobody is known to lead the group."""


class TaskOutdated(RetriableError):
    """A task is not what it was when it began to start."""


class InternalRequests(Protocol):
    """Requests to the leader's internal REST; ``sign`` gives the headers for a body, None leaves it unsigned."""

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None: ...

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        """Raises RetriableError where the leader does not answer, or is busy with a round."""
        ...


class Around:
    """What effects reach beside group and config topic, and what work tells.

    Args:
        worker_id: Whom statuses name as their author.
        now_ms: The wall clock, in milliseconds since 1970.
        changed: Called after every event of the herder's.
    """

    def __init__(
        self,
        config: WorkerConfig,
        core: Herder,
        driver: HerderDriver,
        config_store: ConfigStore,
        statuses: StatusStore,
        restarts: AutoRestarts,
        fence: ZombieFence,
        internal: InternalRequests,
        loggers: Loggers,
        *,
        worker_id: str,
        now_ms: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self._config = config
        self._core = core
        self._driver = driver
        self._config_store = config_store
        self._statuses = statuses
        self._restarts = restarts
        self._fence = fence
        self._internal = internal
        self._loggers = loggers
        self._worker_id = worker_id
        self._now_ms = now_ms
        self._changed = changed
        #: Set by the owner, as a worker needs its listener first.
        self.worker: Worker | None = None

    # -- what the herder wants -------------------------------------------------------------------------

    def start_connector(self, effect: events.StartConnector) -> None:
        props = self._core.snapshot.connector_config(effect.name)
        assert props is not None
        assert self.worker is not None
        self.worker.start_connector(effect.name, props, effect.target)

    def start_task(self, effect: events.StartTask) -> None:
        task, snapshot = effect.task, self._core.snapshot
        connector, props = snapshot.connector_config(task.connector), snapshot.task_config(task)
        assert connector is not None
        assert props is not None
        assert self.worker is not None
        generation = snapshot.task_generation(task.connector)
        fenced = self._config.exactly_once_enabled
        self.worker.start_task(
            task,
            connector,
            props,
            effect.target,
            task_count=snapshot.task_count(task.connector),
            before=(lambda: self._fence_older(task.connector)) if fenced else None,
            after=(lambda: self._check_newest(task, generation)) if fenced else None,
        )

    def reconfigure_task(self, task: TaskId) -> bool:
        snapshot = self._core.snapshot
        connector, props = snapshot.connector_config(task.connector), snapshot.task_config(task)
        if connector is None or props is None:
            return False
        assert self.worker is not None
        return self.worker.reconfigure_task(task, connector, props, task_count=snapshot.task_count(task.connector))

    def write_status(self, work: str | TaskId, state: State, *, safe: bool) -> None:
        status = Status(state, self._worker_id, self._core.generation, restarts=self._restarts.last(work))
        self._statuses.put(work, status, safe=safe)

    def forget_topics(self, connector: str) -> None:
        self._statuses.forget_topics(connector)

    def set_level(self, namespace: str, level: str) -> None:
        try:
            changed = self._loggers.set(namespace, level)
        except NotFound as error:
            log.warning("the group's level of %s is not set here: %s", namespace, error)
            return
        log.info("the group's level of %s is %s now; %d loggers changed here", namespace, level, len(changed))

    async def send_task_configs(self, leader_url: str, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Until the leader answers, however busy it is (what is sent twice is written twice), or another one leads."""
        request = self._internal.post_task_configs(leader_url, name, configs, self._signer())
        async with Scope(f"task configs of {name}") as scope:
            sending = scope.spawn(request, f"task configs of {name} to {leader_url}")
            while not sending.done():
                if self._core.leader_url not in (leader_url, None):
                    raise RetriableError(
                        f"connector {name}: {leader_url}, which no longer leads, has not said whether it took the task "
                        "configs"
                    )
                await asyncio.wait({sending}, timeout=_LEADER_LOOK_S)
            await sending

    def stepped(self) -> None:
        self._changed()

    # -- what work tells -------------------------------------------------------------------------------

    def connector_changed(self, name: str, state: State, failure: FailureTrace | None, version: str | None) -> None:
        self._tell(name, state, failure, version)

    def connector_failed(self, name: str) -> None:
        self._driver.put(events.ConnectorFailed(name))

    def task_changed(self, task: TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        self._tell(task, state, failure, version)

    def task_configs_wanted(self, name: str) -> None:
        self._driver.put(events.TaskConfigsWanted(name))

    def topic_used(self, topic: str, task: TaskId) -> None:
        if self._config.topic_tracking_enable:
            self._statuses.topic_used(TopicUse(topic, task.connector, task.task, self._now_ms()))

    def _tell(self, work: str | TaskId, state: State, failure: FailureTrace | None, version: str | None) -> None:
        wait_ms = None
        if failure is not None and not failure.is_at_end:
            wait_ms = self._restarts.failed(work, may_recover=failure.may_recover)
        restarts = self._restarts.last(work)
        if restarts is not None:
            self._driver.put(events.ScheduleAutoRestart(work, wait_ms))
        trace = None if failure is None else failure.trace
        status = Status(state, self._worker_id, self._core.generation, trace, version, restarts)
        self._statuses.put(work, status, safe=state in _SAFE)

    # -- exactly-once ----------------------------------------------------------------------------------

    async def _fence_older(self, connector: str) -> None:
        """Have the leader shut out all older tasks, whoever leads, or comes to lead within moments."""
        clock = asyncio.get_running_loop().time
        patience = Patience(log, f"fence {connector}", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        give_up_s = clock() + _FENCE_S
        while True:
            try:
                async with asyncio.timeout(_FENCE_ANSWER_S):
                    return await self._fence_by_leader(connector)
            except (RetriableError, ElsewhereError, RequestConflict) as error:
                refusal: Exception = error
            except TimeoutError:
                refusal = RetriableError(
                    f"connector {connector}: its older tasks were not fenced off within {_FENCE_ANSWER_S:g} s"
                )
            if clock() > give_up_s:
                raise refusal
            await patience.after(refusal)

    async def _fence_by_leader(self, connector: str) -> None:
        if self._core.is_leader:
            await self._fence.fence(connector)
            return
        url = self._core.leader_url
        if url is None:
            raise NoLeader(f"connector {connector}: nobody leads the group, so its older tasks cannot be fenced off")
        await self._internal.put_fence(url, connector, self._signer())

    async def _check_newest(self, task: TaskId, generation: int | None) -> None:
        """Once the task's transactional id is claimed: is it still ours, and are its configs the newest?

        A topic that cannot be read for a while fails no task; Java waits for it without limit, too.
        """
        patience = Patience(log, f"check whether task {task} is still ours", _AGAIN_FIRST_MS, _AGAIN_LAST_MS)
        while True:
            try:
                await self._config_store.read_to_end(self._config.sync_timeout_ms / 1000)
                break
            except RetriableError as error:
                await patience.after(error)
        await self._driver.turn()
        if self._core.snapshot.task_generation(task.connector) != generation or task not in self._core.assignment.tasks:
            raise TaskOutdated(f"task {task} was configured anew, or given to another worker, while it started")

    def _signer(self) -> Sign | None:
        key = self._core.snapshot.session_key
        if self._core.protocol != SESSIONED or key is None:
            return None
        algorithm = self._config.signature_algorithm
        return lambda body: {SIGNATURE_HEADER: herder_api.sign(key, algorithm, body), ALGORITHM_HEADER: algorithm}
