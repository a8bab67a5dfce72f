"""The composition root of a worker of a Connect group: REST server, plugins, Spark, and the worker itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from connect.api.plugins import PluginDescription, PluginKind
from connect.cli.metrics import ProcessMetrics
from connect.cli.rest_tls import rest_tls
from connect.cli.spark import spark_of_worker
from connect.core.configlog import ConfigLog
from connect.core.worker_config import WorkerConfig
from connect.kafka.lease_thread import LeaseThread
from connect.runtime.distributed import DistributedWorker
from connect.runtime.loop_watch import LoopWatch, collect_rarely
from connect.runtime.plugins import Plugins
from connect.runtime.worker_check import check_worker
from connectors.config_defs import OWN
from connectors.plugins import mirror_plugins
from connectors.settings import flow_of
from connectors.source.host import MirrorHost, SharedSpark
from connectors.source.lag_watch import LagWatch
from connectors.source.links import ADVERTISED_KEY, LISTENER_KEY, LinkSettings
from rest.forward import InternalClient
from rest.server import RestServer
from rest.settings import RestSettings

log = logging.getLogger(__name__)


class WorkerNode:
    """One worker and its REST server, in one process; ``elected`` is called when it has become its group's leader.

    Raises:
        ConfigError: A setting of the REST server or of Spark is refused, or a plugin that the file names is not there.
    """

    def __init__(self, config: WorkerConfig, elected: Callable[[], None] = lambda: None) -> None:
        self._config = config
        self._elected = elected
        self._leases = LeaseThread(config.progress_timeout_ms / 1000)
        self._spark = SharedSpark(
            lambda: spark_of_worker(config.props, config.transformer.variables(config.raw)),
            link_settings(config.props),
            self._leases,
        )
        self.host = MirrorHost(config.props, self._spark, self._find_plugin, lambda: self.worker.holds)
        self._plugins = Plugins.discover(mirror_plugins(self.host), may_read_files=config.may_read_files)
        check_worker(config, self._plugins)
        self._worker: DistributedWorker | None = None
        self._lag: LagWatch | None = None
        self._watch = LoopWatch(self._leases)
        self._server = RestServer(
            RestSettings.of(config.values),
            tls=rest_tls(config.props),
            metrics=ProcessMetrics(self._workers, self._watch),
        )

    def _find_plugin(self, kinds: Sequence[PluginKind], name: str, version: str | None) -> PluginDescription:
        return self._plugins.find(kinds, name, version)

    async def start(self) -> None:
        """Bind the listeners, read the internal topics and begin to join the group.

        Raises:
            HeliographError: What makes that impossible.
        """
        collect_rarely()
        self._leases.start()
        self._watch.start()
        await self._server.start()
        await self._server.prepare()
        url = self._server.advertised_url
        self._worker = DistributedWorker(
            self._config,
            self._plugins,
            InternalClient(self._server.forwarder),
            name=f"group {self._config.group_id}",
            url=url,
            worker_id=urlsplit(url).netloc,
            leases=self._leases,
            elected=self._elected,
            loaded=lambda stored: tell_flows(self._config.group_id, stored, self._spark.is_for),
            engine=self._spark,
        )
        self._server.serve(self._worker.herder)
        self._lag = LagWatch(self.host, partial(self._worker.connectors_here, self._spark.is_for))
        await self._worker.start()
        self._lag.start()

    @property
    def worker(self) -> DistributedWorker:
        """Known once it is started."""
        assert self._worker is not None
        return self._worker

    async def ended(self) -> None:
        """Returns when the worker was stopped; raises what ended it otherwise."""
        await self.worker.ended()

    async def stop(self) -> None:
        """Leave the group and end everything, in bounded time."""
        if self._lag is not None:
            await self._lag.stop()
        if self._worker is not None:
            await self._worker.stop()
        self.host.long_logs.close()
        await self._server.stop()
        await self._spark.stop()
        await self._leases.stop()

    def _workers(self) -> list[tuple[DistributedWorker, MirrorHost]]:
        return [] if self._worker is None else [(self._worker, self.host)]


def tell_flows(group_id: str, stored: ConfigLog, is_mirror: Callable[[str], bool]) -> None:
    """Say which flows the connectors of a group have; ``is_mirror`` knows their class."""
    configs = [config for name in stored.connectors() if (config := stored.connector_config(name)) is not None]
    flows = {flow_of(config) for config in configs if is_mirror(config.get("connector.class", ""))}
    log.info("group %s: flows %s", group_id, ", ".join(sorted(flows)) or "none yet")


def link_settings(props: Mapping[str, str]) -> LinkSettings:
    """Where Spark's tasks reach this process; raises ConfigError."""
    values = OWN.parse(props)
    return LinkSettings.parse(values.string(LISTENER_KEY), values.string(ADVERTISED_KEY))
