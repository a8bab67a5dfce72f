"""MirrorHeartbeat's connector writes heartbeats; readers of a cluster's heartbeats find out which flows are alive.

Kafka's ``MirrorHeartbeatConnector`` and ``MirrorHeartbeatTask``. The worker's producer writes the records, so they
show that the whole path works: worker, target and, if they are mirrored, the flows after it.

The reader reads only the newest heartbeats of each topic, not a whole long log.

The worker of a flow ``us->eu`` writes heartbeats into ``heartbeats`` on eu: they show that the worker runs and reaches
its target. The flow mirrors the heartbeats on us as ``us.heartbeats`` (and ``us.ap.heartbeats`` of a flow before it):
these show that records are copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from connect.api.connector import Props
from connect.api.policy import ReplicationPolicy
from connect.api.source import RecordMetadata, SourceRecord, SourceTask
from connect.core.config.config_def import ConfigDef
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offset
from connectors.client import all_sources
from connectors.config.client_config import client_connection, connector_client, inner_client_id, open_admin
from connectors.config.connector_configs import interval_s
from connectors.config.definitions import HEARTBEAT
from connectors.connector_base import Latencies, MirrorConnector, Task, WrittenLatencies, check_offsets, mirror_record
from connectors.formats.mirror_records import Heartbeat
from connectors.internal_topics import keep_making
from connectors.policy import make_policy

log = logging.getLogger(__name__)

_FACTOR_KEY: Final = "heartbeats.topic.replication.factor"
_SOURCE: Final = "sourceClusterAlias"
_TARGET: Final = "targetClusterAlias"


def topic_of_heartbeats(props: Props) -> NewTopic:
    factor = HEARTBEAT.parse(props).integer(_FACTOR_KEY)
    return NewTopic(make_policy(props).heartbeats_topic(), 1, factor, {"cleanup.policy": "compact"})


class MirrorHeartbeatConnector(MirrorConnector):
    """``org.apache.kafka.connect.mirror.MirrorHeartbeatConnector``: creates the topic, and has one task."""

    def __init__(self, written: WrittenLatencies | None = None) -> None:
        self._written = written or WrittenLatencies()
        self._props: Props = {}
        self._interval_s: int | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return HEARTBEAT

    async def start(self, props: Props) -> None:
        """Create the topic on the target, even if no heartbeats are emitted. Wait for the first attempt, at most
        ``admin.timeout.ms``; further attempts run in the background."""
        values = HEARTBEAT.parse(props)
        self._props, self._interval_s = props, interval_s(values, "emit.heartbeats")
        target = values.string("target.cluster.alias")
        client = connector_client(props, "target", "admin")
        client_id = inner_client_id(
            f"{values.string('source.cluster.alias')}->{target}",
            values.string("name"),
            "heartbeats-target-admin",
            client.get("client.id", ""),
        )
        connection = client_connection(props, "target", "admin", client_id=client_id, where=f"cluster {target}")
        admin = open_admin(props, connection, target, f"set {_FACTOR_KEY} lower")
        self._closing.push_async_callback(admin.close)
        scope = await self._closing.enter_async_context(Scope(values.string("name")))
        topic = topic_of_heartbeats(props)
        tried = asyncio.Event()
        scope.spawn(keep_making(admin, topic, tried), f"create {topic.name} for {values.string('name')}")
        try:
            async with asyncio.timeout(values.integer("admin.timeout.ms") / 1000):
                await tried.wait()
        except TimeoutError:
            log.warning("topic %s is not created yet; retrying in the background", topic.name)

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        return [] if self._interval_s is None else [self._props]

    def make_task(self) -> MirrorHeartbeatTask:
        return MirrorHeartbeatTask(self._written)

    async def stop(self) -> None:
        await self._closing.aclose()

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Check offsets, which mean nothing here: accept only those that a task could have written, and any reset."""
        return check_offsets(offsets, _SOURCE, _TARGET, only_zero=True)


class MirrorHeartbeatTask(SourceTask):
    """A task that sleeps for an interval, then returns one record."""

    def __init__(self, written: WrittenLatencies) -> None:
        self._written = written
        self._latencies = Latencies()
        self._name = Task("", "", "")
        self._interval_s = 0
        self._topic = ""

    async def start(self, props: Props) -> None:
        values = HEARTBEAT.parse(props)
        self._interval_s = interval_s(values, "emit.heartbeats") or 0
        self._topic = make_policy(props).heartbeats_topic()
        self._name = Task(values.string("source.cluster.alias"), values.string("target.cluster.alias"), "0")
        self._latencies.done_ms = wall_ms()
        self._written.heartbeats[self._name] = self._latencies

    async def stop(self) -> None:
        # A successor may have started already.
        if self._written.heartbeats.get(self._name) is self._latencies:
            del self._written.heartbeats[self._name]

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        if metadata is not None:
            self._latencies.done_ms = wall_ms()
            self._latencies.written((), record.timestamp_ms or 0, self._latencies.done_ms)

    async def poll(self) -> Sequence[SourceRecord]:
        await asyncio.sleep(self._interval_s)
        now_ms, (source, target, _) = wall_ms(), self._name
        heartbeat = Heartbeat(source, target, now_ms)
        return [mirror_record({_SOURCE: source, _TARGET: target}, self._topic, heartbeat, now_ms)]


class Age(NamedTuple):
    """The age of the newest heartbeat, in seconds; ``at_least`` if it is older than all that was read."""

    seconds: float
    at_least: bool = False


class FlowState(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"
    NONE = "no heartbeats"
    OFF = "heartbeats are off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TopicHeartbeats:
    """Heartbeats in one topic: when the newest of each flow was sent, and from when on they were read."""

    topic: str
    newest_ms: Mapping[tuple[str, str], int]
    read_from_ms: int | None


@dataclass(frozen=True, slots=True)
class ClusterHeartbeats:
    """Heartbeats of one cluster by topic, or why they could not be read; ``policies`` interpret topic names there."""

    alias: str
    reported: Sequence[TopicHeartbeats] = ()
    policies: Sequence[ReplicationPolicy] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ConfiguredFlow:
    """A flow of the file: whether it mirrors heartbeats with other records, and how often its worker emits its own."""

    source: str
    target: str
    carries_beats: bool
    beats_every_s: int | None


@dataclass(frozen=True, slots=True)
class FlowHealth:
    source: str
    target: str
    state: FlowState
    age: Age | None
    in_file: bool

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Way:
    """How records reach ``cluster``: the clusters before it, the nearest first. ``in_file``: all its flows are in the
    file, and mirror heartbeats."""

    cluster: str
    topic: str
    through: tuple[str, ...]
    state: FlowState
    age: Age | None
    in_file: bool = False


#: States of a flow or path that should be alive.
_GONE: Final = (FlowState.STOPPED, FlowState.NONE)


def flow_health(
    wanted: Iterable[ConfiguredFlow], clusters: Mapping[str, ClusterHeartbeats], now_ms: int, stale_s: float
) -> list[FlowHealth]:
    """Return every flow of the file, and flows that are not in the file but have heartbeats."""
    found = []
    listed = set()
    for flow in wanted:
        listed.add((flow.source, flow.target))
        seen = clusters[flow.target]
        age = _age(_own(seen), (flow.source, flow.target), now_ms)
        if seen.error:
            state = FlowState.UNKNOWN
        elif flow.beats_every_s is None:
            state = FlowState.OFF
        else:
            state = _state(age, _limit_s(flow, stale_s))
        found.append(FlowHealth(flow.source, flow.target, state, age, in_file=True))
    for seen in clusters.values():
        for source, target in sorted({flow for one in _own(seen) for flow in one.newest_ms}):
            if target == seen.alias and (source, target) not in listed:
                age = _age(_own(seen), (source, target), now_ms)
                found.append(FlowHealth(source, target, _state(age, stale_s), age, in_file=False))
    return found


def way_health(
    wanted: Collection[ConfiguredFlow], clusters: Iterable[ClusterHeartbeats], now_ms: int, stale_s: float
) -> list[Way]:
    """Return the paths to all clusters that could be read, by cluster and hops. A path is alive while heartbeats of any
    flow arrive over it in time: those of a stopped flow do not, and those of a slow flow are unknown for a while."""
    limits_s = {(flow.source, flow.target): _limit_s(flow, stale_s) for flow in wanted}
    carried = {(flow.source, flow.target) for flow in wanted if flow.carries_beats}
    found = []
    for seen in clusters:
        for one in seen.reported:
            if through := _through(seen.policies, one.topic):
                ages = {flow: _since(at_ms, now_ms) for flow, at_ms in one.newest_ms.items()}
                states = {_state(age, limits_s.get(flow, stale_s)) for flow, age in ages.items()} or {FlowState.NONE}
                state = FlowState.ALIVE if FlowState.ALIVE in states else states.pop()
                in_file = all(hop in carried for hop in zip(through, (seen.alias, *through), strict=False))
                found.append(Way(seen.alias, one.topic, through, state, min(ages.values(), default=None), in_file))
    return sorted(found, key=lambda way: (way.cluster, len(way.through), way.through))


def has_stopped(flows: Collection[FlowHealth], ways: Iterable[Way]) -> bool:
    """Whether a flow of the file is not alive, or records do not pass over it: its worker may emit heartbeats while
    nothing is mirrored. A path over which no heartbeats are sent now says nothing."""
    sent_to = {flow.target for flow in flows if flow.state is FlowState.ALIVE}
    return any(flow.in_file and flow.state in _GONE for flow in flows) or any(
        way.in_file and way.state in _GONE and way.through[-1] in sent_to for way in ways
    )


def _limit_s(flow: ConfiguredFlow, stale_s: float) -> float:
    """Return how old a flow's last heartbeat may be: three of its own intervals, if that is longer."""
    return max(stale_s, 3 * (flow.beats_every_s or 0))


def _through(policies: Collection[ReplicationPolicy], topic: str) -> tuple[str, ...]:
    """Apply the policy that recognizes most clusters: flows to one cluster may name their topics differently."""
    return max((tuple(all_sources(policy, topic)) for policy in policies), key=len, default=())


def _own(seen: ClusterHeartbeats) -> list[TopicHeartbeats]:
    """Return the topics that workers write into."""
    return [one for one in seen.reported if not _through(seen.policies, one.topic)]


def _age(reported: Iterable[TopicHeartbeats], flow: tuple[str, str], now_ms: int) -> Age | None:
    """Return None if there is no heartbeat of the flow, in a topic that was read whole."""
    least: Age | None = None
    for one in reported:
        if (newest_ms := one.newest_ms.get(flow)) is not None:
            return _since(newest_ms, now_ms)
        if one.read_from_ms is not None:
            least = _since(one.read_from_ms, now_ms)._replace(at_least=True)
    return least


def _since(at_ms: int, now_ms: int) -> Age:
    # The clocks of two machines may differ by a little.
    return Age(max(now_ms - at_ms, 0) / 1000)


def _state(age: Age | None, stale_s: float) -> FlowState:
    if age is None:
        return FlowState.NONE
    return FlowState.STOPPED if age.seconds > stale_s or age.at_least else FlowState.ALIVE


#: Records read from one topic: hours of heartbeats of several flows. A flow that stopped earlier is at least that old.
MOST: Final = 20_000


async def read_heartbeats(
    cluster: Cluster, policies: Collection[ReplicationPolicy], timeout_s: float, most: int = MOST
) -> list[TopicHeartbeats]:
    """Read every heartbeats topic there, by name. Raises RetriableError if the cluster does not answer in time, and
    SecurityError if a right is missing."""
    topics = (await cluster.metadata(None)).topics
    names = sorted(
        name
        for name, topic in topics.items()
        if topic.partitions and any(policy.is_heartbeats_topic(name) for policy in policies)
    )
    return [await _read(cluster, name, timeout_s, most) for name in names]


async def _read(cluster: Cluster, topic: str, timeout_s: float, most: int) -> TopicHeartbeats:
    start, end = [await list_offset(cluster, (topic, 0), at) for at in (EARLIEST, LATEST)]
    begin = max(start, end - most)
    newest_ms: dict[tuple[str, str], int] = {}
    read_from_ms: list[int] = []

    def take(record: LogRecord) -> None:
        one = Heartbeat.decode(record.key, record.value)
        if not read_from_ms:
            read_from_ms.append(one.timestamp_ms)
        flow = (one.source_alias, one.target_alias)
        newest_ms[flow] = max(one.timestamp_ms, newest_ms.get(flow, 0))

    await read_to_end(cluster, topic, take, partitions=[0], after={0: begin}, timeout_s=timeout_s)
    return TopicHeartbeats(topic, newest_ms, read_from_ms[0] if begin > start and read_from_ms else None)
