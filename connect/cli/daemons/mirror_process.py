"""The process of a dedicated mirror: one Spark engine, one control link, one REST server, and a worker for each ordered
pair of clusters (Kafka's ``MirrorMaker``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connect.cli.daemons.flow_worker import FlowWorker, check_flow, worker_config
from connect.cli.rates import ENDED
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.kafka.concurrency import Pauses, Scope, is_set_within, together, wall_ms
from connect.kafka.threads import LeaseThread
from connect.runtime.event_loop_monitor import LoopWatch, collect_rarely
from connect.runtime.herder.driver import WorkerFailed
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig, mirrored
from connectors.control_link.server import LISTENER_KEY, LinkSettings
from connectors.flow_facts import FlowProgress
from connectors.flow_progress import Contact
from connectors.source.worker_context import SharedSpark
from connectors.spark.engine import SparkEngine

if TYPE_CHECKING:
    from connect.cli.daemons.worker_process import NodeRest

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
#: The first and the longest pause before a worker for heartbeats only is restarted.
_RESTART_DELAYS_S: Final = (5.0, 30.0)


class FlowsFailed(PermanentError):
    """All flows have failed."""


class StopFailed(PermanentError):
    """A flow failed while it was stopped. Its last positions may not be stored; the next start recovers them."""


class MirrorMaker:
    """The flows of a file, run until stopped. ``flows`` are those with a worker: enabled ones, and those for heartbeats
    only; ``engine`` may have begun, and is stopped with them; it is None if no flow is enabled. Raises ConfigError,
    with key and line in the file, if a setting is invalid."""

    def __init__(self, config: MirrorMakerConfig, flows: Sequence[Flow], engine: SparkEngine | None) -> None:
        for flow in flows:
            check_flow(flow)
        self._config, self._flows, self._engine = config, flows, engine
        progress_timeout_ms = min(worker_config(flow).progress_timeout_ms for flow in flows)
        self._leases = LeaseThread(progress_timeout_ms / 1000)
        self._spark = SharedSpark(self._engine_begun, link_settings(config, mirrored(flows)), self._leases)
        self._watch = LoopWatch(self._leases)
        self._public = config.public_rest
        self._rest = self._node_rest() if self._public or config.internal_rest else None
        self._workers: list[FlowWorker] = []
        self._scope = Scope("connect-mirror-maker")
        #: Workers that have ended by themselves, with the reason.
        self._ended: dict[FlowWorker, str] = {}

    async def start(self) -> None:
        """Start every worker, retrying while clusters do not answer. Workers for heartbeats only start in the
        background, so that their failures do not affect enabled flows."""
        collect_rarely()
        self._leases.start()
        self._watch.start()
        if self._rest is not None:
            try:
                await self._rest.start()
            except ConfigError as error:
                raise self._config.located(error, [error.key or ""]) from None
        for flow in self._flows:
            self._workers.append(self._made(flow))
            await asyncio.sleep(0)  # because plugin discovery takes tens of milliseconds for each
        if self._rest is not None:
            self._rest.serve(self._workers)
        for index, worker in enumerate(self._workers):
            if not worker.flow.enabled:
                self._scope.spawn(self._keep_up(index), f"heartbeats of {worker.flow}")
        await together("start of flows", [worker.start() for worker in self._mirrors])
        for worker in self._mirrors:
            self._scope.spawn(self._live(worker), f"life of {worker.flow}")

    async def run_until(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. Raises :class:`FlowsFailed` if all flows have failed and cannot be restarted over
        REST."""
        while not await is_set_within(stop, _LOOK_S):
            self._raise_if_failed()

    async def stop(self) -> None:
        """Stop copying, store positions, leave the groups and end Spark, within seconds. Raises :class:`StopFailed`."""
        await self._scope.close()
        stopped = await asyncio.gather(*(worker.stop() for worker in self._workers), return_exceptions=True)
        await self._spark.stop()
        if self._engine is not None:
            await self._engine.stop()
        if self._rest is not None:
            await self._rest.stop()
        await self._leases.stop()
        failed = []
        for worker, error in zip(self._workers, stopped, strict=True):
            if error is not None:
                log.error("%s did not stop cleanly", worker.flow, exc_info=error)
                failed.append(f"{worker.flow}: {error}")
        if failed:
            raise StopFailed(f"not all flows stopped cleanly: {'; '.join(failed)}")

    def progress(self) -> list[FlowProgress]:
        """Return the progress of every enabled flow."""
        now_ms = wall_ms()
        found = [(worker, worker.progress(now_ms)) for worker in self._mirrors]
        return [replace(one, state=ENDED) if worker in self._ended else one for worker, one in found]

    def contacts(self) -> list[Contact]:
        """Return the contact with the clusters of every enabled flow."""
        return [worker.host.contact(Connector.SOURCE.value) for worker in self._mirrors]

    @property
    def _mirrors(self) -> list[FlowWorker]:
        return [worker for worker in self._workers if worker.flow.enabled]

    def _raise_if_failed(self) -> None:
        reasons = []
        for worker in self._mirrors:
            # Over public REST a failed connector or task can be restarted.
            reason = self._ended.get(worker) or (None if self._public else worker.failure())
            if reason is None:
                return
            reasons.append(f"{worker.flow}: {reason}")
        if reasons:
            raise FlowsFailed(f"all flows have failed: {'; '.join(reasons)}")

    async def _live(self, worker: FlowWorker) -> None:
        """Wait until a worker ends by itself, then stop it so that its group does not wait for it."""
        try:
            await worker.ended()
        except HeliographError as error:
            self._ended[worker] = str(error)
            log.error("%s: its worker has ended, other flows continue: %s", worker.flow, error)
            await _in_order(worker, worker.put_away())

    def _made(self, flow: Flow) -> FlowWorker:
        return FlowWorker(flow, self._spark, self._leases, None if self._rest is None else self._rest.of_flow(flow))

    async def _keep_up(self, index: int) -> None:
        """Run a worker for heartbeats only; restart it after errors that a retry may resolve, log any other error."""
        pauses = Pauses(*_RESTART_DELAYS_S)
        while True:
            worker = self._workers[index]
            try:
                await worker.start()
                await worker.ended()
                return
            except (RetriableError, WorkerFailed) as error:
                delay_s = pauses.next_s()
                log.warning("%s: no heartbeats: %s; retrying in %.0f s", worker.flow, error, delay_s)
            except ConfigError as error:
                log.error("%s: no heartbeats: %s", worker.flow, worker.flow.located(error))
                return
            except Exception as error:
                ours = isinstance(error, HeliographError)
                log.error("%s: no heartbeats: %s", worker.flow, error, exc_info=None if ours else error)
                return
            await _in_order(worker, worker.stop())
            await asyncio.sleep(delay_s)
            self._workers[index] = self._made(worker.flow)
            if self._rest is not None:
                self._rest.serve(self._workers)

    def _engine_begun(self) -> SparkEngine:
        assert self._engine is not None, "only enabled flows have tasks"
        return self._engine

    def _node_rest(self) -> NodeRest:
        from connect.cli.daemons.worker_process import NodeRest

        try:
            return NodeRest(self._config.top_level_properties(), self._watch, public=self._public)
        except ConfigError as error:
            raise self._config.located(error, [error.key or ""]) from None


async def _in_order(worker: FlowWorker, stopping: Coroutine[None, None, None]) -> None:
    (error,) = await asyncio.gather(stopping, return_exceptions=True)
    if error is not None:
        log.warning("%s did not stop cleanly: %s", worker.flow, error)


def link_settings(config: MirrorMakerConfig, flows: Sequence[Flow]) -> LinkSettings:
    """Return the control link's settings, which all flows share. Raises ConfigError if they differ."""
    settings = [flow.settings() for flow in flows]
    found = {(one.link_listener, one.link_advertised_address) for one in settings}
    if not found:
        return LinkSettings()
    try:
        if len(found) > 1:
            said = f"{LISTENER_KEY} differs between flows, which share one listener. Set it without a prefix"
            raise ConfigError(said, LISTENER_KEY)
        ((listener, advertised),) = found
        return LinkSettings.parse(listener, advertised)
    except ConfigError as error:
        raise config.located(error, [error.key or ""]) from None
