"""Parse the properties of the source and checkpoint connectors into typed settings, and make their filters.

A source connector's settings include those of its worker, its clients and ACL sync that affect it. Filters are the
classes named by ``topic.filter.class``, ``group.filter.class`` and ``config.property.filter.class``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.api.filters import ConfigPropertyFilter, GroupFilter, TopicFilter
from connect.api.policy import ReplicationPolicy
from connect.api.transformations import NamedStep, named_steps
from connect.core.config import client_settings, worker_settings
from connect.core.config.config_def import AtLeast, ConfigDef, OneOf, Read, Setting, Values
from connect.core.errors import ConfigError
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire.batch import CODEC_NAMES
from connectors.config import client_config
from connectors.config.client_config import ClientKind, ClusterSide
from connectors.config.definitions import CHECKPOINT, SOURCE, USE_DEFAULTS_FROM
from connectors.filters import DefaultConfigPropertyFilter, DefaultGroupFilter, DefaultTopicFilter, should_mirror
from connectors.formats.gap import GapPolicy, OnSourceGap, OnTopicRecreated
from connectors.formats.types import Compression, FlowName
from connectors.policy import CONFIG_PROPERTY_FILTERS, GROUP_FILTERS, TOPIC_FILTERS, Factory, make, make_policy
from connectors.transforms.smt_chain import NO_ROUTES, OTHERS_KEY, TOPIC_KEY, UNCHANGED, TopicRoutes, topic_routes
from connectors.transforms.sql_query import KEY as QUERY_KEY
from connectors.transforms.sql_query import RecordsQuery, parse_query
from connectors.transforms.target_names import RemoteNames, renames_topics, renaming_steps

_JAVA: Final = "org.apache.kafka.connect.mirror."
_OURS: Final = "connectors.filters."


def make_topic_filter(props: Mapping[str, str]) -> TopicFilter:
    """Make the topic filter. Raises ConfigError if the class is unknown, or rejects ``props``."""
    found: TopicFilter = _make("topic.filter.class", "DefaultTopicFilter", _topics, TOPIC_FILTERS, props)
    return found


def make_group_filter(props: Mapping[str, str]) -> GroupFilter:
    """Make the group filter. Raises ConfigError."""
    found: GroupFilter = _make("group.filter.class", "DefaultGroupFilter", _groups, GROUP_FILTERS, props)
    return found


def make_property_filter(props: Mapping[str, str]) -> ConfigPropertyFilter:
    """Make the filter of topic configurations. Raises ConfigError."""
    key, default = "config.property.filter.class", "DefaultConfigPropertyFilter"
    found: ConfigPropertyFilter = _make(key, default, _properties, CONFIG_PROPERTY_FILTERS, props)
    return found


def _make(key: str, default: str, factory: Factory, group: str, props: Mapping[str, str]) -> Any:
    name = props.get(key, _JAVA + default).strip()
    return make(key, name, {_JAVA + default: factory, _OURS + default: factory}, group, props)


def _topics(props: Mapping[str, str]) -> DefaultTopicFilter:
    values = SOURCE.only("topics", "topics.exclude").parse(props)
    return DefaultTopicFilter(values.strings("topics"), values.strings("topics.exclude"))


def _groups(props: Mapping[str, str]) -> DefaultGroupFilter:
    values = CHECKPOINT.only("groups", "groups.exclude").parse(props)
    return DefaultGroupFilter(values.strings("groups"), values.strings("groups.exclude"))


def _properties(props: Mapping[str, str]) -> DefaultConfigPropertyFilter:
    values = (SOURCE.only("config.properties.exclude") | USE_DEFAULTS_FROM).parse(props)
    return DefaultConfigPropertyFilter(
        values.strings("config.properties.exclude"), source_defaults=values.string("use.defaults.from") == "source"
    )


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Settings of ACL sync. ``interval_s`` None: ACLs are not synced. ``is_full``: more than Java syncs. ``resources``
    are values of ``connectors.config.definitions.RESOURCES``; ``takes_group`` is the group filter of checkpoints."""

    interval_s: int | None
    is_full: bool
    resources: frozenset[str]
    writes: bool
    dry_run: bool
    takes_group: Callable[[str], bool]


def access_settings(values: Values, connector: Mapping[str, str]) -> AccessSettings:
    """Take the settings from a connector's ``values`` and properties. Raises ConfigError for a wrong group filter."""
    enabled = values.boolean("sync.topic.acls.enabled")
    return AccessSettings(
        interval_s=values.integer("sync.topic.acls.interval.seconds") if enabled else None,
        is_full=values.string("sync.acls.mode") == "full",
        resources=frozenset(values.strings("sync.acls.resources")),
        writes=values.boolean("sync.acls.write.enabled"),
        dry_run=values.boolean("sync.acls.dry.run"),
        takes_group=make_group_filter(connector).should_replicate_group,
    )


BYTE_ARRAY_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
CONVERTERS: Final = ("key.converter", "value.converter", "header.converter")
#: Names of the converter by which Java finds plugins.
_COPY: Final = (BYTE_ARRAY_CONVERTER, "ByteArrayConverter", "ByteArray")

#: Settings of the worker that affect a copy.
WORKER: Final = ConfigDef.of(
    replace(worker_settings.WORKER.settings["offset.flush.interval.ms"], check=AtLeast(1))
) | worker_settings.WORKER.only(
    "offset.storage.topic",
    "offset.storage.partitions",
    "offset.storage.replication.factor",
    "exactly.once.source.support",
)

#: Settings of the producer of records that affect a copy.
PRODUCER: Final = client_settings.PRODUCER.only(
    "compression.type", *client_settings.COMPRESSION_LEVELS, "transaction.timeout.ms"
) | ConfigDef.of(
    # No default, because the copy's own is larger.
    replace(
        client_settings.PRODUCER.settings["batch.size"],
        default=None,
        check=AtLeast(0, nullable=True),
        doc="Bytes of the largest batch into which waiting batches are merged. Default: 1 MiB. 0: do not merge.",
    )
)


def _unset(key: str, **changed: Any) -> Setting:
    """Return a setting of a consumer without its default, because the copy's own is better."""
    return replace(client_settings.CONSUMER.settings[key], default=None, check=AtLeast(0, nullable=True), **changed)


#: Settings of the source's consumer that affect a copy.
CONSUMER: Final = client_settings.CONSUMER.only("isolation.level", "client.rack") | ConfigDef.of(
    replace(
        client_settings.CONSUMER.settings["auto.offset.reset"], default="earliest", check=OneOf(("earliest", "latest"))
    ),
    _unset("fetch.max.bytes"),
    _unset(
        "max.partition.fetch.bytes",
        doc="Most bytes of one partition in a fetch; a partition buffers up to twice as many. Default: its share of "
        "half of a slice's 48 MiB, 1 to 16 MiB; a fetch from a near broker returns 8 MiB at most.",
    ),
    _unset("fetch.max.wait.ms"),
    _unset("fetch.min.bytes"),
)


def flow_of(connector: Mapping[str, str]) -> str:
    """Return the flow that a mirror connector's config names, even if the config is invalid."""
    return f"{connector.get('source.cluster.alias', '?')}->{connector.get('target.cluster.alias', 'target')}"


@dataclass(frozen=True, slots=True)
class OffsetSyncsSettings:
    """``topic`` is on the source if ``on_source``, else on the target; ``lag_max`` is in records."""

    topic: str
    on_source: bool
    replication_factor: int
    lag_max: int


def _signed_interval_s(values: Values, name: str) -> int | None:
    """Return the interval of a job; None if it is off."""
    return values.integer(f"{name}.interval.seconds") if values.boolean(f"{name}.enabled") else None


def interval_s(values: Values, name: str) -> int | None:
    """Return the interval of a job; None if it is off, also by an interval below zero."""
    found_s = _signed_interval_s(values, name)
    return None if found_s is None or found_s < 0 else found_s


def _deletion_delay_ms(values: Values, name: str) -> int | None:
    return values.integer(f"{name}.delay.ms") if values.string(f"{name}.policy") == "delete-after" else None


@dataclass(frozen=True)
class MirrorSourceSettings:
    """The settings of one flow's source connector; ``values`` are its own, its worker's and its clients' with prefixes.

    Units are as in the names; a fetch setting is None if the user did not set it. An interval is None if its job is
    off; ``look_interval_ms`` and ``lag_interval_ms`` are then 0. ``topic_deletion_delay_ms`` is None if remote topics
    are kept. ``spark`` holds the ``spark.*`` keys. ``skips_refused``: skip records that the target rejects permanently,
    and log each if ``logs_skipped``. ``compression`` is for uncompressed batches. ``offset_syncs`` is None if none are
    written, ``transactions`` without exactly-once. Records pass through ``transform_sql`` and ``transforms`` if set.
    """

    values: Values = field(repr=False)
    enabled: bool
    source_alias: str
    target_alias: str
    topic_filter: TopicFilter
    property_filter: ConfigPropertyFilter
    policy: ReplicationPolicy
    names: RemoteNames
    access: AccessSettings
    read_committed: bool
    initial_offsets_group: str
    skips_refused: bool
    compression: Compression
    offset_syncs: OffsetSyncsSettings | None
    offsets_topics: tuple[str, ...]
    gap_policy: GapPolicy
    transactions: client_config.Rhythm | None
    transform_sql: str
    transforms: tuple[NamedStep, ...]
    spark: Mapping[str, str] = field(repr=False)

    name = Read("name", Values.string)
    tasks_max = Read("tasks.max", Values.integer)
    heartbeats_replication = Read("heartbeats.replication.enabled", Values.boolean)
    replication_factor = Read("replication.factor", Values.integer)
    admin_timeout_ms = Read("admin.timeout.ms", Values.integer)
    refresh_topics_interval_s = Read("refresh.topics", _signed_interval_s)
    sync_topic_configs_interval_s = Read("sync.topic.configs", _signed_interval_s)
    look_interval_ms = Read("refresh.look.interval.ms", Values.integer)
    lag_interval_ms = Read("lag.interval.ms", Values.integer)
    topic_deletion_delay_ms = Read("topic.deletion", _deletion_delay_ms)
    logs_skipped = Read("errors.log.enable", Values.boolean)
    lease_ms = Read("lease.ms", Values.integer)
    epoch_ms = Read("copy.epoch.ms", Values.integer)
    link_listener = Read("link.listener", Values.string)
    link_advertised_address = Read("link.advertised.address", Values.string)
    offsets_topic_partitions = Read("offset.storage.partitions", Values.integer)
    offsets_topic_replication_factor = Read("offset.storage.replication.factor", Values.integer)
    flush_interval_ms = Read("offset.flush.interval.ms", Values.integer)
    auto_offset_reset = Read("consumer.auto.offset.reset", Values.string)
    fetch_max_bytes = Read("consumer.fetch.max.bytes", Values.integer_or_null)
    max_partition_fetch_bytes = Read("consumer.max.partition.fetch.bytes", Values.integer_or_null)
    fetch_max_wait_ms = Read("consumer.fetch.max.wait.ms", Values.integer_or_null)
    fetch_min_bytes = Read("consumer.fetch.min.bytes", Values.integer_or_null)
    client_rack = Read("consumer.client.rack", Values.string)
    batch_bytes = Read("producer.batch.size", Values.integer_or_null)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.values.warnings

    @property
    def flow(self) -> str:
        return str(self.flow_name)

    @property
    def flow_name(self) -> FlowName:
        return FlowName(self.source_alias, self.target_alias)

    @property
    def offsets_topic(self) -> str:
        """The topic that source offsets are written to; reads fall back on the others."""
        return self.offsets_topics[-1]

    @property
    def map_topic(self) -> str:
        """The topic of the offset map, which also holds positions."""
        return _map_topic(self.source_alias)

    @property
    def changing_key(self) -> str:
        """The setting that makes copies differ from their sources; empty if none does."""
        if self.transform_sql:
            return QUERY_KEY
        return "" if all(map(renames_topics, self.transforms)) else "transforms"

    def should_mirror(self, topic: str) -> bool:
        """Whether a topic of the source is mirrored. Heartbeats show that the flow of the usual topics runs: monitoring
        would not find them in another topic, and all flows would share that topic."""
        if not self.names.routes.fills_the_usual and self.policy.is_heartbeats_topic(topic):
            return False
        return should_mirror(
            topic,
            topic_filter=self.topic_filter,
            policy=self.policy,
            target_alias=self.target_alias,
            heartbeats_replication=self.heartbeats_replication,
        )

    def remote_topic(self, topic: str) -> str:
        """Return a source topic's name on the target. Raises PermanentError if it has none."""
        return self.names.of(topic)

    def remote_topics(self, topic: str) -> Sequence[str]:
        """Return all topics that its records are sent to, by any connector; ours first. Raises PermanentError."""
        return self.names.all_of(topic)


def source_settings(connector: Mapping[str, str], worker: Mapping[str, str]) -> MirrorSourceSettings:
    """Parse a source connector's configuration and its worker's, both with references resolved. Raises ConfigError with
    the key of the connector or worker, such as ``tasks.max``, or of a client, such as ``consumer.isolation.level``."""
    values = SOURCE.parse(connector)
    policy = make_policy(connector)
    source_alias, transforms = values.string("source.cluster.alias"), named_steps(connector)
    query = parse_query(text) if (text := values.string(QUERY_KEY)) else None
    routes = topic_routes(values)
    _refuse_routes_to_nowhere(routes, query, transforms)
    offsets = WORKER.parse(worker)
    consumer = _client_values(CONSUMER, client_config.connector_client(connector, "source", "consumer"), "consumer.")
    producer = _client_values(PRODUCER, client_config.record_producer(connector, worker), "producer.")
    _refuse_what_changes_records(connector, worker)
    offsets_topic = offsets.string("offset.storage.topic")
    clients = {
        f"{kind}.{key}": value
        for kind, of in (("consumer", consumer), ("producer", producer))
        for key, value in of.items()
    }
    return MirrorSourceSettings(
        values=Values({**values, **offsets, **clients}, values.warnings),
        enabled=values.boolean("enabled"),
        source_alias=source_alias,
        target_alias=values.string("target.cluster.alias"),
        topic_filter=make_topic_filter(connector),
        property_filter=make_property_filter(connector),
        policy=policy,
        names=RemoteNames(source_alias, policy, renaming_steps(transforms), routes, bool(query and query.routes)),
        access=access_settings(values, connector),
        read_committed=consumer["isolation.level"] == "read_committed",
        initial_offsets_group=values.string("initial.offsets.group").strip(),
        skips_refused=values.string("errors.tolerance") == "all",
        compression=compression_of(producer),
        offset_syncs=_offset_syncs(values, policy) if routes.fills_the_usual else None,
        offsets_topics=tuple(dict.fromkeys((offsets_topic, connector.get("offsets.storage.topic") or offsets_topic))),
        gap_policy=GapPolicy(
            OnSourceGap(values.string("on.source.gap")), OnTopicRecreated(values.string("on.topic.recreated"))
        ),
        transactions=client_config.rhythm(connector, worker, offsets, producer.integer("transaction.timeout.ms")),
        transform_sql=query.text if query else "",
        transforms=transforms,
        spark={key: value for key, value in connector.items() if key.startswith("spark.")},
    )


def _offset_syncs(values: Values, policy: ReplicationPolicy) -> OffsetSyncsSettings | None:
    if not values.boolean("emit.offset-syncs.enabled"):
        return None
    return OffsetSyncsSettings(
        topic=_offset_syncs_topic(values, policy),
        on_source=values.string("offset-syncs.topic.location") == "source",
        replication_factor=values.integer("offset-syncs.topic.replication.factor"),
        lag_max=values.integer("offset.lag.max"),
    )


def _offset_syncs_topic(values: Values, policy: ReplicationPolicy) -> str:
    """Return the topic's name, which has the alias of the cluster that does not hold it."""
    other = "target" if values.string("offset-syncs.topic.location") == "source" else "source"
    return policy.offset_syncs_topic(values.string(f"{other}.cluster.alias"))


def _map_topic(source_alias: str) -> str:
    return f"mm2-offset-map.{source_alias}.internal"


def compression_of(values: Values) -> Compression:
    """Return the compression that a producer's settings name."""
    name = values.string("compression.type")
    level = f"compression.{name}.level"
    return Compression(CODEC_NAMES.index(name), values.integer(level) if level in PRODUCER.settings else None)


def _refuse_routes_to_nowhere(routes: TopicRoutes, query: RecordsQuery | None, transforms: Sequence[NamedStep]) -> None:
    """Raise if topics are named that nothing sends records to."""
    sends = (query is not None and query.routes) or not all(map(renames_topics, transforms))
    if not sends and routes != NO_ROUTES:
        key = TOPIC_KEY if routes.own != UNCHANGED else OTHERS_KEY
        raise ConfigError(f"{key} has no effect: neither {QUERY_KEY} (column topic) nor transforms use it", key)


def _client_values(config: ConfigDef, props: Mapping[str, str], prefix: str) -> Values:
    try:
        return config.parse(props)
    except ConfigError as error:
        key = error.key or ""
        raise ConfigError(error.message.replace(key, prefix + key, 1), prefix + key) from None


def _refuse_what_changes_records(connector: Mapping[str, str], worker: Mapping[str, str]) -> None:
    """Raise if the configuration asks for changed records, because a log line would not be enough."""
    for key in CONVERTERS:
        own = connector.get(key)
        converter = (worker.get(key, BYTE_ARRAY_CONVERTER) if own is None else own).strip()
        if converter not in _COPY:
            whose = " of the worker" if own is None else ""
            raise ConfigError(
                f"{key} {converter}{whose} would change the bytes of every record, but mirrored records are copied "
                f"unchanged. Set {', '.join(CONVERTERS)} to {BYTE_ARRAY_CONVERTER} for the connector",
                key,
            )


#: The key of a task's config that its connector adds (Kafka's ``MirrorCheckpointTaskConfig``).
ASSIGNED_GROUPS = "task.assigned.groups"


@dataclass(frozen=True)
class CheckpointSettings:
    """The settings of one flow's checkpoint connector. An interval is None if its job is off. ``syncs_on_source``:
    whether the topic of offset syncs is on the source; otherwise it is on the target."""

    values: Values = field(repr=False)
    topic_filter: TopicFilter
    group_filter: GroupFilter
    policy: ReplicationPolicy
    _props: Mapping[str, str] = field(repr=False)

    name = Read("name", Values.string)
    enabled = Read("enabled", Values.boolean)
    source_alias = Read("source.cluster.alias", Values.string)
    target_alias = Read("target.cluster.alias", Values.string)
    tasks_max = Read("tasks.max", Values.integer)
    admin_timeout_ms = Read("admin.timeout.ms", Values.integer)
    refresh_groups_interval_s = Read("refresh.groups", interval_s)
    emit_interval_s = Read("emit.checkpoints", interval_s)
    sync_interval_s = Read("sync.group.offsets", interval_s)
    replication_factor = Read("checkpoints.topic.replication.factor", Values.integer)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.values.warnings

    @property
    def flow(self) -> str:
        return f"{self.source_alias}->{self.target_alias}"

    @property
    def checkpoints_topic(self) -> str:
        return self.policy.checkpoints_topic(self.source_alias)

    @property
    def syncs_on_source(self) -> bool:
        return self.values.string("offset-syncs.topic.location") == "source"

    @property
    def offset_syncs_topic(self) -> str:
        return _offset_syncs_topic(self.values, self.policy)

    @property
    def map_topic(self) -> str:
        """The offset map of the flow, on its target."""
        return _map_topic(self.source_alias)

    def connection(self, side: ClusterSide, kind: ClientKind, role: str, task: str = "") -> ConnectionSettings:
        """Return connection settings for a client in one of Java's roles; ``task`` is ``-0`` in a task. Raises
        ConfigError."""
        client = client_config.connector_client(self._props, side, kind)
        client_id = client_config.inner_client_id(self.flow, self.name + task, role, client.get("client.id", ""))
        alias = self.source_alias if side == "source" else self.target_alias
        return client_config.client_connection(self._props, side, kind, client_id=client_id, where=f"cluster {alias}")


def checkpoint_settings(props: Mapping[str, str]) -> CheckpointSettings:
    """Parse a checkpoint connector's configuration with references resolved. Raises ConfigError."""
    values = CHECKPOINT.parse(props)
    return CheckpointSettings(values, make_topic_filter(props), make_group_filter(props), make_policy(props), props)
