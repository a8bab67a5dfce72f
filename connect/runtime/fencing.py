"""Rounds of fencing: before tasks of a new generation start under exactly-once, the producers of all older ones are
shut out (KIP-618, Kafka's ``DistributedHerder.fenceZombieSourceTasks``). The leader's work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from connect.core import events
from connect.core.errors import RetriableError
from connect.core.herder import Herder
from connect.core.herding import BadRequest, NotFound, RequestConflict
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, together
from connect.kafka.settings import ConnectionSettings
from connect.kafka.transactions import init_producer_id
from connect.runtime.clients import task_transactional_id
from connect.runtime.driver import Driver
from connect.runtime.stores.config import ConfigStore

log = logging.getLogger(__name__)

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
        driver: Driver,
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
