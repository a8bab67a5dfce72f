"""Builds the process of a worker: REST server, plugins, Spark, ``/metrics``, and the worker itself.

* The REST server of a dedicated mirror's node. Only nodes with a REST server import this module, because it loads a web
  framework.
* ``/metrics`` shows the workers and mirrors of the process, and Python itself.
* TLS of the REST server and of requests to other workers comes from the worker's properties.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from connect.api.plugins import PluginDescription, PluginKind
from connect.cli.daemons.flow_worker import FlowRest, FlowWorker
from connect.cli.daemons.spark import spark_of_worker
from connect.core.config.rest_settings import REST_INTERNAL
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError
from connect.kafka.security.tls_stores import tls_settings
from connect.kafka.threads import LeaseThread
from connect.runtime.distributed_worker import DistributedWorker
from connect.runtime.event_loop_monitor import LoopWatch, collect_rarely
from connect.runtime.plugins.plugin_registry import Plugins, check_worker
from connect.runtime.worker_metrics import worker_metrics
from connectors.config.connector_configs import flow_of
from connectors.config.definitions import OWN
from connectors.config.mm2_properties import Flow
from connectors.connector_base import written_metrics
from connectors.control_link.server import ADVERTISED_KEY, LISTENER_KEY, LinkSettings
from connectors.plugins import mirror_plugins
from connectors.source.worker_context import MirrorHost, SharedSpark
from connectors.source.worker_metrics import LagWatch, mirror_metrics
from rest.request_handling import InternalClient
from rest.rest_config import RestSettings, RestTls
from rest.server import Part, RestServer

#: The workers of the process now, each with what it lends its mirrors.
Workers = Callable[[], Sequence[tuple[DistributedWorker, MirrorHost]]]


class ProcessMetrics:
    """Gives the text of ``/metrics``, one at a time: looks in the loop, a few partitions in a turn, and writes the
    text in a thread."""

    def __init__(self, workers: Workers, watch: LoopWatch) -> None:
        self._workers = workers
        self._watch = watch
        self._asked = asyncio.Lock()

    async def __call__(self) -> bytes:
        async with self._asked:
            now_ms, pairs = time.time_ns() // 1_000_000, self._workers()
            registry = CollectorRegistry(auto_describe=False)
            found = [
                *await worker_metrics([worker for worker, _ in pairs], now_ms),
                *await mirror_metrics([host for _, host in pairs], now_ms),
                *written_metrics([host.written for _, host in pairs], now_ms),
                *self._of_loop(),
            ]
            for collector in (
                _MetricsCollector(found),
                ProcessCollector(registry=None),
                PlatformCollector(registry=None),
            ):
                registry.register(collector)
            return await asyncio.to_thread(_text_of, registry, found)

    def _of_loop(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "heliograph_loop_stalls", "How often something held up the loop for over a second.", self._watch.stalls
        )
        yield CounterMetricFamily(
            "heliograph_loop_stalled_seconds", "For how long in all, as far as it is over.", self._watch.stalled_s
        )
        leases = self._watch.leases
        yield GaugeMetricFamily(
            "heliograph_loop_longest_stall_seconds",
            "For how long the worker's loop came late at most since the start.",
            leases.longest_stall_s,
        )
        yield GaugeMetricFamily(
            "heliograph_lease_longest_beat_seconds",
            "The longest time since the start between two turns of the thread that renews leases.",
            leases.longest_beat_s,
        )


def _text_of(registry: CollectorRegistry, found: Sequence[Metric]) -> bytes:
    """The text of what was found. A family after the other is let go of: all at once are 60 ms of the loop."""
    text = generate_latest(registry)
    for metric in found:
        metric.samples.clear()
    return text


class _MetricsCollector(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterator[Metric]:
        # What there is changes with the workers; nothing is described before it is collected.
        return iter(())


_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def rest_tls(props: Mapping[str, str]) -> RestTls:
    """Contexts made when they are first needed; they raise ConfigError and SecurityError.

    A server's keys stand behind its prefix (``listeners.https.``); one of them there, and those without it count no
    more (KIP-208).
    """
    return RestTls(
        lambda prefix: _server(props, prefix),
        lambda: tls_settings(_keys(props, "listeners.https."), "rest").ssl_context(),
    )


def _server(props: Mapping[str, str], prefix: str) -> ssl.SSLContext:
    keys = _keys(props, prefix)
    return tls_settings(keys, prefix.rstrip(".")).server_context(_client_auth(keys, prefix))


def _client_auth(keys: Mapping[str, str], prefix: str) -> ssl.VerifyMode:
    """Java takes every word that it does not know for ``none`` here, which leaves open what was to be closed."""
    word = keys.get("ssl.client.auth", "none")
    if word.lower() not in _CLIENT_AUTH:
        raise ConfigError(
            f"{prefix}ssl.client.auth is '{word}'; it can be {', '.join(_CLIENT_AUTH)}", f"{prefix}ssl.client.auth"
        )
    return _CLIENT_AUTH[word.lower()]


def _keys(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    own = {key.removeprefix(prefix): value.strip() for key, value in props.items() if key.startswith(prefix)}
    return own or {key: value.strip() for key, value in props.items() if key.startswith("ssl.")}


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


class NodeRest:
    """One server for all flows of a node.

    Args:
        props: The file's keys that are no cluster's and no flow's.
        watch: Of the loop that all run in, for metrics.
        public: The whole API for users, or what nodes ask of each other alone.

    Raises:
        ConfigError: A setting of the server is refused.
    """

    def __init__(self, props: Mapping[str, str], watch: LoopWatch, *, public: bool) -> None:
        self._public = public
        self._workers: Sequence[FlowWorker] = ()
        self._server = RestServer(
            RestSettings.of(REST_INTERNAL.parse(props)),
            tls=rest_tls(props),
            metrics=ProcessMetrics(self._watched, watch),
        )

    @property
    def public_url(self) -> str | None:
        """Where users find the API; None where it is not for them."""
        return self._server.advertised_url if self._public else None

    async def start(self) -> None:
        """Bind the listeners; raises where an address is not free or not ours."""
        await self._server.start()
        await self._server.prepare(Part.ALL if self._public else Part.INTERNAL)

    def of_flow(self, flow: Flow) -> FlowRest:
        """The way from a flow's worker to those on other nodes."""
        return FlowRest(self._server.advertised_url, InternalClient(self._server.forwarder, (flow.source, flow.target)))

    def serve(self, workers: Sequence[FlowWorker]) -> None:
        """Answer for these workers; to be told again when one is another."""
        self._workers = tuple(workers)
        herders = {(each.flow.source, each.flow.target): each.herder for each in workers}
        self._server.serve_flows(herders, public=self._public)

    async def stop(self) -> None:
        await self._server.stop()

    def _watched(self) -> list[tuple[DistributedWorker, MirrorHost]]:
        return [(each.worker, each.host) for each in self._workers]
