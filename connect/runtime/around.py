"""Between a herder and the work on its worker: what the one wants started, and what the other tells.

The driver's ``Surroundings`` and the worker's ``WorkerListener`` in one, since both end in statuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from connect.core import events, signing
from connect.core.errors import RetriableError
from connect.core.herder import Herder
from connect.core.herding import ElsewhereError, NotFound, RequestConflict
from connect.core.membership import SESSIONED
from connect.core.model import State, Status, TaskId
from connect.core.statuslog import TopicUse
from connect.core.worker_config import WorkerConfig
from connect.kafka.concurrency import Scope
from connect.kafka.patience import Patience
from connect.runtime.auto_restarts import AutoRestarts
from connect.runtime.driver import Driver
from connect.runtime.fencing import ZombieFence
from connect.runtime.listener import Failure
from connect.runtime.loggers import Loggers
from connect.runtime.stores.config import ConfigStore
from connect.runtime.stores.status import StatusStore
from connect.runtime.worker import Worker

log = logging.getLogger(__name__)

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
        driver: Driver,
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

    def connector_changed(self, name: str, state: State, failure: Failure | None, version: str | None) -> None:
        self._tell(name, state, failure, version)

    def connector_failed(self, name: str) -> None:
        self._driver.put(events.ConnectorFailed(name))

    def task_changed(self, task: TaskId, state: State, failure: Failure | None, version: str | None) -> None:
        self._tell(task, state, failure, version)

    def task_configs_wanted(self, name: str) -> None:
        self._driver.put(events.TaskConfigsWanted(name))

    def topic_used(self, topic: str, task: TaskId) -> None:
        if self._config.topic_tracking_enable:
            self._statuses.topic_used(TopicUse(topic, task.connector, task.task, self._now_ms()))

    def _tell(self, work: str | TaskId, state: State, failure: Failure | None, version: str | None) -> None:
        wait_ms = None
        if failure is not None and not failure.is_at_end:
            wait_ms = self._restarts.failed(work, may_recover=failure.may_recover)
        restarts = self._restarts.last(work)
        if restarts is not None:
            self._driver.put(events.AutoRestart(work, wait_ms))
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
        return lambda body: {SIGNATURE_HEADER: signing.sign(key, algorithm, body), ALGORITHM_HEADER: algorithm}
