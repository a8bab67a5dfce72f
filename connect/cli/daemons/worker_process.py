"""The process of a worker: REST server with ``/metrics`` and TLS, plugins, Spark, and the worker itself.

Nodes of a dedicated mirror import it only if they have a REST server, because it loads a web framework.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
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
from connect.core.config.properties import Properties
from connect.core.config.rest_settings import HTTPS_PREFIX, REST_INTERNAL, check_access, tls_keys
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError
from connect.kafka.concurrency import wall_ms
from connect.kafka.security.connection_settings import open_stores
from connect.kafka.security.tls_stores import certificate_ends, tls_settings
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
from connectors.source.lag_watch import LagWatch
from connectors.source.worker_context import MirrorHost, SharedSpark
from connectors.source.worker_metrics import mirror_metrics, verification_metrics
from rest.other_workers import InternalClient
from rest.rest_config import RestSettings, RestTls
from rest.server import Part, RestServer

#: Gives the current workers of the process, each with the host of its mirrors.
Workers = Callable[[], Sequence[tuple[DistributedWorker, MirrorHost]]]


class ProcessMetrics:
    """The text of ``/metrics``, one request at a time: collected in the loop, a few partitions in a turn, and formatted
    in a thread."""

    def __init__(self, workers: Workers, watch: LoopWatch) -> None:
        self._workers, self._watch = workers, watch
        self._asked = asyncio.Lock()

    async def __call__(self) -> bytes:
        async with self._asked:
            now_ms, pairs = wall_ms(), self._workers()
            registry = CollectorRegistry(auto_describe=False)
            found = [
                *await worker_metrics([worker for worker, _ in pairs], now_ms),
                *await mirror_metrics([host for _, host in pairs], now_ms),
                *await verification_metrics([host for _, host in pairs], now_ms),
                *written_metrics([host.written for _, host in pairs], now_ms),
                *self._of_loop(),
                _of_certificates(now_ms / 1000),
            ]
            registry.register(_MetricsCollector(found))
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
            return await asyncio.to_thread(_text_of, registry, found)

    def _of_loop(self) -> Iterator[Metric]:
        watch, leases = self._watch, self._watch.leases
        count, gauge = CounterMetricFamily, GaugeMetricFamily
        yield count("heliograph_loop_stalls", "How often the event loop stalled for over a second.", watch.stalls)
        yield count("heliograph_loop_stalled_seconds", "Total duration of stalls that have ended.", watch.stalled_s)
        text = "The longest delay of the event loop since the start."
        yield gauge("heliograph_loop_longest_stall_seconds", text, leases.longest_stall_s)
        text = "The longest time since the start between two turns of the thread that renews leases."
        yield gauge("heliograph_lease_longest_beat_seconds", text, leases.longest_beat_s)


def _of_certificates(now_s: float) -> Metric:
    """Return when the certificates end that this process uses: of each store the first that is still valid, or the last
    if none is, because trust stores keep certificates that have ended."""
    family = GaugeMetricFamily(
        "heliograph_certificate_expiry_timestamp_seconds",
        "When the first valid certificate of a key store or trust store ends, in seconds since 1970.",
        labels=("owner", "store"),
    )
    for owner, store, ends in certificate_ends():
        in_force = [end for end in ends if end > now_s] if store == "truststore" else ends
        family.add_metric((owner, store), min(in_force, default=max(ends)))
    return family


def _text_of(registry: CollectorRegistry, found: Sequence[Metric]) -> bytes:
    """Format the metrics. Their samples are freed one family at a time, because all at once would block for 60 ms."""
    text = generate_latest(registry)
    for metric in found:
        metric.samples.clear()
    return text


class _MetricsCollector(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def rest_tls(props: Mapping[str, str]) -> RestTls:
    """Return TLS contexts that are created when they are needed, and may raise ConfigError and SecurityError. If any
    key has the prefix ``listeners.https.``, keys without it are ignored (KIP-208)."""
    client = tls_keys(props, HTTPS_PREFIX)
    return RestTls(lambda prefix: _server(props, prefix), lambda: tls_settings(client, "rest").ssl_context())


def _server(props: Mapping[str, str], prefix: str) -> ssl.SSLContext:
    keys = tls_keys(props, prefix)
    where = prefix.rstrip(".")
    try:
        settings, client_auth = tls_settings(keys, where), _client_auth(keys, prefix)
    except ConfigError as error:
        key, said = error.key or "", error.message.removeprefix(f"{where}: ")
        if key.startswith(prefix) or not any(one.startswith(prefix) for one in props):
            raise
        raise ConfigError(said.replace(key, prefix + key, 1), prefix + key) from None
    if client_auth is not ssl.CERT_NONE and settings.trusted_pem is None:
        key = f"{prefix}ssl.truststore.location"
        why = "without it a certificate of any public authority would be a user"
        raise ConfigError(f"{prefix}ssl.client.auth needs {key}: {why}", key)
    return settings.server_context(client_auth)


def _client_auth(keys: Mapping[str, str], prefix: str) -> ssl.VerifyMode:
    """Parse ``ssl.client.auth``. Raises ConfigError for an unknown word, which Java takes as ``none``."""
    word, key = keys.get("ssl.client.auth", "none"), f"{prefix}ssl.client.auth"
    if word.lower() not in _CLIENT_AUTH:
        raise ConfigError(f"{key} is '{word}'. Use one of {', '.join(_CLIENT_AUTH)}", key)
    return _CLIENT_AUTH[word.lower()]


log = logging.getLogger(__name__)


class WorkerNode:
    """One worker and its REST server; ``elected`` is called when the worker becomes its group's leader. Raises
    ConfigError if a setting of the REST server or of Spark is invalid, or if a plugin does not exist."""

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
        for warning in check_worker(config, self._plugins):
            log.warning("%s", config.raw.warning(warning) if isinstance(config.raw, Properties) else warning)
        self._worker: DistributedWorker | None = None
        self._lag: LagWatch | None = None
        self._watch = LoopWatch(self._leases)
        metrics = ProcessMetrics(self._workers, self._watch)
        self._server = RestServer(RestSettings.of(config.values), tls=rest_tls(config.props), metrics=metrics)

    def _find_plugin(self, kinds: Sequence[PluginKind], name: str, version: str | None) -> PluginDescription:
        return self._plugins.find(kinds, name, version)

    async def start(self) -> None:
        """Bind the listeners, read the internal topics and start to join the group. Raises HeliographError."""
        await open_stores(self._config.props)
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
            loaded=lambda stored: log_flows(self._config.group_id, stored, self._spark.is_for),
            engine=self._spark,
        )
        self._server.serve(self._worker.herder)
        self._lag = LagWatch(self.host, partial(self._worker.connectors_here, self._spark.is_for))
        await self._worker.start()
        self._lag.start()

    @property
    def worker(self) -> DistributedWorker:
        """The worker, after the start."""
        assert self._worker is not None
        return self._worker

    async def stop(self) -> None:
        """Leave the group and end everything, in bounded time."""
        if self._lag is not None:
            await self._lag.stop()
        if self._worker is not None:
            await self._worker.stop()
        await self.host.kept.close()
        self.host.long_logs.close()
        await self._server.stop()
        await self._spark.stop()
        await self._leases.stop()

    def _workers(self) -> list[tuple[DistributedWorker, MirrorHost]]:
        return [] if self._worker is None else [(self._worker, self.host)]


def log_flows(group_id: str, stored: ConfigLog, is_mirror: Callable[[str], bool]) -> None:
    """Log the flows of a group's connectors; ``is_mirror`` tells by class which connectors mirror."""
    configs = [config for name in stored.connectors() if (config := stored.connector_config(name)) is not None]
    flows = {flow_of(config) for config in configs if is_mirror(config.get("connector.class", ""))}
    log.info("group %s: flows %s", group_id, ", ".join(sorted(flows)) or "none yet")


def link_settings(props: Mapping[str, str]) -> LinkSettings:
    """Return where Spark's tasks reach this process. Raises ConfigError."""
    values = OWN.parse(props)
    return LinkSettings.parse(values.string(LISTENER_KEY), values.string(ADVERTISED_KEY))


class NodeRest:
    """The REST server for all flows of a node. ``props`` are the file's keys without a cluster's or a flow's prefix;
    ``public``: it serves the whole API, not only requests of other nodes. Raises ConfigError if a setting is invalid.
    """

    def __init__(self, props: Mapping[str, str], watch: LoopWatch, *, public: bool) -> None:
        self._public = public
        self._workers: Sequence[FlowWorker] = ()
        values = REST_INTERNAL.parse(props)
        if public:
            check_access(values, props)
        metrics = ProcessMetrics(lambda: [(each.worker, each.host) for each in self._workers], watch)
        self._server = RestServer(RestSettings.of(values), tls=rest_tls(props), metrics=metrics)

    async def start(self) -> None:
        """Bind the listeners. Raises CannotListen, and ConfigError if a listener is https and there are no keys."""
        await self._server.start()
        await self._server.prepare(Part.ALL if self._public else Part.INTERNAL)

    def of_flow(self, flow: Flow) -> FlowRest:
        """Return the internal REST of a flow's worker."""
        return FlowRest(self._server.advertised_url, InternalClient(self._server.forwarder, (flow.source, flow.target)))

    def serve(self, workers: Sequence[FlowWorker]) -> None:
        """Serve these workers. To be called again when one is replaced."""
        self._workers = tuple(workers)
        herders = {(each.flow.source, each.flow.target): each.herder for each in workers}
        self._server.serve_flows(herders, public=self._public)

    async def stop(self) -> None:
        await self._server.stop()
