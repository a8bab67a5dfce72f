"""The worker of one flow of a dedicated mirror; its group's leader configures the three connectors (Kafka's
``MirrorHerder``)."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from connect.api.plugins import PluginDescription, PluginKind
from connect.cli.rates import NO_TOPICS
from connect.core.config.worker_config import WorkerConfig
from connect.core.config_topic import ConfigLog
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.herder_api import Config, ConfigInfos, ElsewhereError, RebalanceExpected, RequestConflict, Sign
from connect.core.model import State, Status, TargetState
from connect.kafka.concurrency import Scope, together
from connect.kafka.threads import LeaseThread
from connect.runtime.distributed_worker import DistributedWorker
from connect.runtime.herder.effects_and_fencing import InternalRequests
from connect.runtime.herder.rest_herder import RuntimeHerder
from connect.runtime.plugins.ineffective_plugin_keys import ineffective_plugin_keys
from connect.runtime.plugins.plugin_registry import Plugins, check_worker
from connectors.checkpoint.connector import objections
from connectors.config.ignored_keys import IgnoredKey
from connectors.config.mm2_properties import Connector, Flow, MirrorMakerConfig
from connectors.flow_facts import FlowProgress
from connectors.plugins import mirror_plugins
from connectors.source.lag_watch import LagWatch
from connectors.source.positions.partition_notes import PartitionsStopped
from connectors.source.worker_context import MirrorHost, SharedSpark

log = logging.getLogger(__name__)

#: The URL of Java's members without REST.
_NO_REST: Final = "NOTUSED"
_AGAIN_S: Final = 1.0
#: How long a failure has to last. If the file replaces the config it lasts until the tasks have the new one.
_FAILED_S: Final = 5.0
_FAILED_BEFORE_S: Final = 60.0
#: Errors of a rebalance or a cluster, which a retry resolves; any other error is in the file.
_PASSING: Final = (RetriableError, RebalanceExpected, RequestConflict, ElsewhereError)
#: A task waits for batches in flight, and the process ends within ten seconds.
_DEFAULTS: Final = {"task.shutdown.graceful.timeout.ms": "8000"}


class NoInternalRest(PermanentError):
    """The leader of the group cannot be contacted because internal REST is disabled."""


@dataclass(frozen=True, slots=True)
class FlowRest:
    """Internal REST: this node's URL, and the client for requests to the leader."""

    url: str
    requests: InternalRequests


class Failures:
    """Detection of a flow that has failed as a whole. Failures from before this node started, the ``earlier`` statuses,
    do not count; neither do failures of stored configs that the file is about to replace."""

    def __init__(self, earlier: Sequence[Status] = ()) -> None:
        self._earlier = earlier
        self._failed: Sequence[Status] = ()
        self._since_s = 0.0

    def look(self, statuses: Sequence[Status], now_s: float, *, is_replaced: bool) -> str | None:
        """Return the reason when a failure of the connector or its tasks has lasted long enough. ``now_s`` is of a
        monotonic clock; ``is_replaced``: the file replaces the config, or has done so in this run."""
        failed = self._of(statuses)
        if list(map(id, failed)) != list(map(id, self._failed)):
            self._failed, self._since_s = failed, now_s
        if not failed or now_s - self._since_s < (_FAILED_BEFORE_S if is_replaced else _FAILED_S):
            return None
        return reason(failed[0].trace or "")

    def _of(self, statuses: Sequence[Status]) -> Sequence[Status]:
        """Return the statuses of the failures, if the flow has failed as a whole."""
        if not statuses:
            return ()
        connector, *tasks = statuses
        if connector.state is State.FAILED:
            return () if self._is_earlier(connector) else [connector]
        failed = [one for one in tasks if one.state is State.FAILED and not self._is_earlier(one)]
        if any(PartitionsStopped.__name__ in (one.trace or "") for one in failed):
            return ()  # because new or recreated topics start it again
        return failed if len(failed) == len(tasks) else ()

    def _is_earlier(self, status: Status) -> bool:
        return any(status is earlier for earlier in self._earlier)


def plugin_key_notices(config: MirrorMakerConfig, flows: Iterable[Flow]) -> Iterator[IgnoredKey]:
    """Yield a notice for each key that a transform, a predicate or a converter of ``flows`` does not use, and that the
    file's :meth:`~MirrorMakerConfig.key_notices` do not have."""
    plugins, reported = Plugins.discover(), {one.key for one in config.key_notices()}
    for flow in flows:
        found = list(ineffective_plugin_keys(flow.connector_config(), plugins, f"{flow}."))
        with suppress(ConfigError):  # because the flow's own start reports it
            found += [_as_written(flow, text) for text in check_worker(worker_config(flow), plugins)]
        for text in found:
            key = text.partition(" ")[0]
            if key not in reported:
                reported.add(key)
                yield IgnoredKey(key, "unknown", text)


def _as_written(flow: Flow, text: str) -> str:
    """Return a warning about a converter's key with the prefix that the file has before it."""
    key = text.partition(" ")[0]
    written, _ = flow.config.written([key, f"{flow.target}.{key}"], key)
    converter = key[: key.index(".converter.")]
    return text.replace(f"{converter}.converter.", f"{written.removesuffix(key)}{converter}.converter.")


class FlowWorker:
    """A flow's worker in this process. Needs a running loop. Raises ConfigError, with its place in the file, if a
    setting of the worker is invalid."""

    def __init__(self, flow: Flow, spark: SharedSpark, leases: LeaseThread, rest: FlowRest | None) -> None:
        self.flow = flow
        config = worker_config(flow)
        self.host = MirrorHost(config.props, spark, self._find_plugin, lambda: self.worker.holds)
        plugins = self._plugins = Plugins.discover(mirror_plugins(self.host), may_read_files=config.may_read_files)
        try:
            check_worker(config, plugins)
        except ConfigError as error:
            raise flow.located(error) from None
        self._elected = asyncio.Event()
        self._scope = Scope(str(flow))
        self._failures = Failures()
        #: Whether the config of the file replaces the stored one, or has done so in this run.
        self._is_replaced = False
        if rest is None:
            worker_id = f"{socket.getfqdn()}/{flow}/{uuid.uuid4()}"
        else:
            worker_id = f"{urlsplit(rest.url).netloc}/{flow}"
        self.worker = DistributedWorker(
            config,
            plugins,
            _WithoutRest() if rest is None else rest.requests,
            name=str(flow),
            cluster=flow.target,
            url=_NO_REST if rest is None else rest.url,
            worker_id=worker_id,
            leases=leases,
            elected=self._elected.set,
            obsolete=self._obsolete,
            engine=spark if flow.enabled else None,
        )
        self.herder.logs_ignored = False
        # Watched on this node even if the tasks run on other nodes, or have ended.
        always = (Connector.SOURCE.value,) if flow.enabled else ()
        self._lag = LagWatch(self.host, partial(self.worker.connectors_here, spark.is_for, always))

    @property
    def herder(self) -> RuntimeHerder:
        return self.worker.herder

    async def start(self) -> None:
        """Read the internal topics and start to join the group; see :meth:`DistributedWorker.start`."""
        await self.worker.start()
        self._failures = Failures(self._statuses())
        self._lag.start()
        self._scope.spawn(self._see_to_connectors(), f"connectors of {self.flow}")

    async def ended(self) -> None:
        """Wait until the worker is stopped; raise the error if it ended by itself."""
        await self.worker.ended()

    async def put_away(self) -> None:
        """Stop a worker that has ended by itself, so that its group does not wait for it. Its clusters are watched
        until :meth:`stop`."""
        await self._scope.close()
        await self.worker.stop()

    async def stop(self) -> None:
        await self._lag.stop()
        await self.put_away()
        await self.host.kept.close()
        self.host.long_logs.close()

    def progress(self, now_ms: int) -> FlowProgress:
        """Return the progress of what this node copies of the flow."""
        name, snapshot = Connector.SOURCE.value, self.worker.core.snapshot
        found = self.host.progress(name, self.flow.name, now_ms)
        if found.tally.partitions or name not in snapshot.connectors():
            return found
        state, status = snapshot.target_state(name), self.worker.statuses.log.status(name)
        if state is not TargetState.STARTED:
            return replace(found, state=state.value)
        if not self.worker.core.is_ready:
            return found  # the config topic may be read in part, up to a connector without its tasks
        # The connector, on this node or another, has run and found nothing to copy.
        has_looked = status is not None and status.state is State.RUNNING and not snapshot.task_ids(name)
        return replace(found, state=NO_TOPICS) if has_looked else found

    def failure(self) -> str | None:
        """Return why the flow has failed as a whole: its connector or all tasks, on any node; else None. To be called
        often."""
        return self._failures.look(self._statuses(), time.monotonic(), is_replaced=self._is_replaced)

    def _statuses(self) -> list[Status]:
        """Return the statuses of the source connector and its tasks, in this order."""
        statuses, name = self.worker.statuses.log, Connector.SOURCE.value
        return [status for status in (statuses.status(name), *statuses.tasks(name).values()) if status is not None]

    def _find_plugin(self, kinds: Sequence[PluginKind], name: str, version: str | None) -> PluginDescription:
        return self._plugins.find(kinds, name, version)

    # -- the leader's part -----------------------------------------------------------------------------

    async def _see_to_connectors(self) -> None:
        """Store the file's configs if others are stored, each time this node becomes leader."""
        while True:
            await self._elected.wait()
            self._elected.clear()
            # At the same time, because one may be refused or time out.
            await together(f"{self.flow}: connectors from the file", map(self._put, Connector))

    def _obsolete(self, stored: ConfigLog) -> list[str]:
        """Return the connectors whose stored configs differ from the file."""
        return [
            connector.value
            for connector in Connector
            if (config := stored.connector_config(connector.value)) is not None
            and (self._left_out(connector) or config != self.flow.connector_config(connector))
        ]

    def _left_out(self, connector: Connector) -> str:
        """Return why the file disables a connector; empty if it does not."""
        if connector is not Connector.CHECKPOINT:
            return ""
        return "; ".join(objections(self.flow.connector_config(connector)).values())

    async def _put(self, connector: Connector) -> None:
        if reason := self._left_out(connector):
            log.info("%s: %s is disabled: %s", self.flow, connector.value, reason)
            return
        wanted, core = self.flow.connector_config(connector), self.worker.core
        while core.is_leader and (stored := core.snapshot.connector_config(connector.value)) != wanted:
            # Without a stored config nothing runs that could be restarted with another one.
            self._is_replaced |= connector is Connector.SOURCE and stored is not None
            try:
                await self.herder.put_connector(connector.value, wanted, None, allow_replace=True)
            except _PASSING as error:
                log.warning("%s: %s is not configured yet: %s", self.flow, connector.value, error)
                await asyncio.sleep(_AGAIN_S)
            except HeliographError as error:
                log.error("%s: %s keeps its old config: %s", self.flow, connector.value, error)
                return


class _WithoutRest:
    """Requests to other nodes without internal REST, which fail with the remedy."""

    async def post_task_configs(
        self, leader_url: str, connector: str, configs: Sequence[Mapping[str, str]], sign: Sign | None
    ) -> None:
        raise NoInternalRest(_missing(f"the tasks of {connector} cannot be configured"))

    async def put_fence(self, leader_url: str, connector: str, sign: Sign | None) -> None:
        raise NoInternalRest(_missing(f"older tasks of {connector} cannot be fenced off"))

    async def validate(self, url: str, connector_class: str, config: Config) -> ConfigInfos | None:
        return None

    async def has_class(self, url: str, connector_class: str) -> bool:
        raise NoInternalRest(_missing(f"it is not known which nodes have the class {connector_class}"))


def _missing(what: str) -> str:
    remedy = "Set dedicated.mode.enable.internal.rest = true and reachable listeners on all nodes"
    return f"another node leads the group, so {what} from here. {remedy}"


def check_flow(flow: Flow) -> None:
    """Check the settings of a flow and its worker before anything is started. Raises ConfigError, with its place in the
    file, if one is invalid."""
    if flow.enabled:
        flow.settings()
        flow.clients()
    worker_config(flow)


def worker_config(flow: Flow) -> WorkerConfig:
    """Return the config of a flow's worker. Raises ConfigError with its place in the file."""
    # Java's dedicated workers always allow every override.
    props = {**_DEFAULTS, **flow.worker_config(), "connector.client.config.override.policy": "All"}
    try:
        return WorkerConfig.parse(props, trusted=map(flow.connector_config, Connector))
    except ConfigError as error:
        raise flow.located(error) from None


def reason(trace: str) -> str:
    """Return the error in a trace: its last line that is not indented, without the class."""
    lines = [line for line in trace.splitlines() if line and not line[0].isspace()]
    last = lines[-1] if lines else "unknown reason"
    cls, colon, text = last.partition(": ")
    return text if colon and "." in cls and " " not in cls else last
