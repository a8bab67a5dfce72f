"""A worker of a Connect group that creates a resource's connectors, which in Kubernetes Strimzi's operator does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

from connect.cli.console import imported, stop_signals
from connect.cli.daemons.connect_distributed import EXIT_WITHIN_S
from connect.cli.daemons.connect_mirror_maker import START_DELAYS_S, SUMMARY_INTERVAL_S, NotStarted, until_next_summary
from connect.cli.daemons.worker_process import WorkerNode
from connect.cli.rates import RateMeter, status_line
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.model import TargetState
from connect.kafka.concurrency import Scope, unless
from connect.runtime.distributed_worker import DistributedWorker
from connectors.config.client_config import flow_clients
from connectors.config.connector_configs import checkpoint_settings, source_settings
from connectors.formats.types import FlowName
from connectors.strimzi.translation import TranslatedResource, WantedConnector

log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
_SOURCE: Final = ".MirrorSourceConnector"


def checked_connectors(found: TranslatedResource, worker: WorkerConfig) -> None:
    """Check the settings of the connectors, key stores included, before anything is started.

    Raises:
        ConfigError: A setting is invalid; the error has its line in the resource.
        SecurityError: A key store cannot be used.
    """
    for wanted in found.connectors:
        try:
            config = worker.transformer.transform(wanted.config)
            if wanted.config["connector.class"].endswith("MirrorSourceConnector"):
                settings = source_settings(config, worker.props)
                flow_clients(
                    settings.flow,
                    config,
                    {"client.id": "", **worker.props},
                    source=settings.source_alias,
                    target=settings.target_alias,
                    locate=lambda error, side, kind: error,
                )
            elif wanted.config["connector.class"].endswith("MirrorCheckpointConnector"):
                checkpoint_settings(config)
        except ConfigError as error:
            raise found.located(error, wanted) from None


async def run_until_signal(found: TranslatedResource, config: WorkerConfig) -> None:
    """Run a resource until SIGTERM or Ctrl-C. A start is retried while a cluster does not answer.

    Raises:
        NotStarted: Starting failed, and a retry would not help.
        HeliographError: The error that ended the worker.
    """
    async with stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        delays_s = chain(START_DELAYS_S, repeat(START_DELAYS_S[-1]))
        await imported(stop, plugins=True)
        while not stop.is_set():
            node, delay_s = _ResourceNode(found, config), next(delays_s)
            try:
                await unless(stop, node.start(), "start")
                if not stop.is_set():
                    await unless(stop, node.ended(), "work")
                return
            except RetriableError as error:
                log.warning("%s; retrying in %.0f s", error, delay_s)
            except PermanentError as error:
                if node.is_started:
                    raise
                raise NotStarted(error) from error
            finally:
                await node.stop()
            await unless(stop, asyncio.sleep(delay_s), "delay before the next start")


class _ResourceNode:
    """A worker, and the tasks of a leader for the resource. Needs a running loop."""

    def __init__(self, found: TranslatedResource, config: WorkerConfig) -> None:
        self._found = found
        self._elections: asyncio.Queue[None] = asyncio.Queue(1)
        self._node = WorkerNode(config, elected=self._elected)
        self._scope = Scope(found.name)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_started(self) -> bool:
        return bool(self._tasks)

    async def start(self) -> None:
        await self._node.start()
        self._tasks = [
            self._scope.spawn(self._see_to_connectors(), f"connectors of {self._found.name}"),
            self._scope.spawn(self._tell(), f"speed of {self._found.name}"),
        ]

    async def ended(self) -> None:
        """Wait until the worker ends; raise its error, or that of a task, which never ends without one."""
        async with Scope(self._found.name) as scope:
            worker = scope.spawn(self._node.ended(), f"end of {self._found.name}")
            done, _ = await asyncio.wait({worker, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()

    async def stop(self) -> None:
        await self._scope.close()
        await self._node.stop()

    def _elected(self) -> None:
        if self._elections.empty():
            self._elections.put_nowait(None)

    async def _see_to_connectors(self) -> None:
        """Store what differs from the resource, each time this worker becomes leader."""
        while True:
            await self._elections.get()
            worker = self._node.worker
            for wanted in self._found.connectors:
                await see_to(worker, wanted)
            _tell_of_others(worker, self._found.connectors)

    async def _tell(self) -> None:
        """Log what is copied here, every few seconds."""
        meter = RateMeter(window_s=SUMMARY_INTERVAL_S)
        clock = asyncio.get_running_loop().time
        flows = {
            each.name: FlowName(each.config["source.cluster.alias"], each.config["target.cluster.alias"])
            for each in self._found.connectors
            if each.name.endswith(_SOURCE)
        }
        while True:
            now_ms = int(time.time() * 1000)
            progress = [self._node.host.progress(name, flow, now_ms) for name, flow in flows.items()]
            for rates in await meter.observe(clock(), progress):
                log.info("%s", status_line(rates))
            await until_next_summary(lambda: [self._node.host.contact(name) for name in flows])


async def see_to(worker: DistributedWorker, wanted: WantedConnector) -> None:
    """Store the config of a connector, and pause or stop it, with retries until it is refused or another worker leads.

    A connector that was stopped is not started even if the resource wants it running, because a failover may have
    stopped it, and a new leader must not undo that.
    """
    while worker.core.is_leader:
        try:
            await _store(worker, wanted)
            return
        except PermanentError as error:
            log.error("%s was not set up as in the resource: %s", wanted.name, error)
            return
        except HeliographError as error:
            log.warning("%s is not set up as in the resource yet: %s", wanted.name, error)
            await asyncio.sleep(_AGAIN_S)


async def _store(worker: DistributedWorker, wanted: WantedConnector) -> None:
    snapshot = worker.core.snapshot
    is_new = snapshot.connector_config(wanted.name) is None
    if snapshot.connector_config(wanted.name) != wanted.config:
        state = wanted.state if is_new else None
        await worker.herder.put_connector(wanted.name, wanted.config, state, allow_replace=True)
        log.info("%s: %s", wanted.name, "created" if is_new else "config replaced by the resource's")
    if is_new or wanted.state is None:
        return
    state = snapshot.target_state(wanted.name)
    if state is wanted.state:
        return
    if wanted.state is TargetState.STARTED:
        log.warning("%s is %s, not running; to start it, use heliograph connectors resume", wanted.name, state.value)
        return
    await worker.herder.set_target_state(wanted.name, wanted.state)
    log.info("%s: %s", wanted.name, wanted.state.value.lower())


def _tell_of_others(worker: DistributedWorker, wanted: Sequence[WantedConnector]) -> None:
    names = {each.name for each in wanted}
    for name in worker.core.snapshot.connectors():
        if name not in names:
            log.warning("connector %s is not in the resource; to end it, use heliograph connectors delete", name)
