"""What a source connector was told, typed: its own settings, and those of its worker and clients that bear on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from connect.api.policy import ReplicationPolicy
from connect.core.config import AtLeast, ConfigDef, InvalidValue, OneOf, Setting, Type, Value, Values
from connect.core.errors import ConfigError
from connect.wire.batch import CODEC_NAMES
from connectors.clients import connector_client, record_producer
from connectors.config_defs import SOURCE
from connectors.dataplane.plan import Compression
from connectors.filters import DefaultTopicFilter, TopicFilter, should_mirror
from connectors.policy import make_policy

BYTE_ARRAY_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_DEFAULT_TOPIC_FILTERS: Final = (
    "org.apache.kafka.connect.mirror.DefaultTopicFilter",
    "connectors.filters.DefaultTopicFilter",
)


@dataclass(frozen=True, slots=True)
class PositiveOrBrokerDefault:
    """At least 1, or -1 for the broker's default."""

    what: str

    def __call__(self, name: str, value: Value) -> None:
        if not isinstance(value, int) or not (value == -1 or value >= 1):
            raise InvalidValue(
                f"Invalid value {value} for configuration {name}: {self.what} must be positive, "
                "or -1 to use the broker's default"
            )

    def __str__(self) -> str:
        return "-1 or [1,...]"


@dataclass(frozen=True, slots=True)
class GzipLevel:
    """1 to 9, or -1 for the codec's default (Kafka's ``CompressionType.GZIP``)."""

    def __call__(self, name: str, value: Value) -> None:
        if not isinstance(value, int) or not (value == -1 or 1 <= value <= 9):
            raise InvalidValue(f"Invalid value {value} for configuration {name}: Value must be 1 to 9, or -1")

    def __str__(self) -> str:
        return "-1 or [1,...,9]"


#: The worker's settings that a copy heeds (Kafka's ``DistributedConfig``).
WORKER: Final = ConfigDef.of(
    # Java flushes every minute and, after a crash, copies that minute again. Here positions are cheap.
    Setting("offset.flush.interval.ms", Type.LONG, 1000, "How often positions are stored.", AtLeast(1)),
    Setting("offset.storage.topic", Type.STRING, None, "Topic of source offsets."),
    Setting(
        "offset.storage.partitions",
        Type.INT,
        25,
        "Its partitions, when it is made.",
        PositiveOrBrokerDefault("Number of partitions"),
    ),
    Setting(
        "offset.storage.replication.factor",
        Type.SHORT,
        3,
        "Its replication factor, when it is made.",
        PositiveOrBrokerDefault("Replication factor"),
    ),
)

#: The keys of the producer of records that mean something to a copy (Kafka's ``ProducerConfig``).
PRODUCER: Final = ConfigDef.of(
    Setting(
        "compression.type",
        Type.STRING,
        "none",
        "Codec of batches that come uncompressed; compressed ones stay as they are.",
        OneOf(CODEC_NAMES),
    ),
    Setting("compression.gzip.level", Type.INT, -1, "How hard gzip tries; -1 for its default.", GzipLevel()),
    Setting("compression.lz4.level", Type.INT, 9, "How hard lz4 tries.", AtLeast(1, 17)),
    Setting("compression.zstd.level", Type.INT, 3, "How hard zstd tries.", AtLeast(-131072, 22)),
)

#: The keys of the source's consumer that mean something to a copy. Without a default: the copy's own is better.
CONSUMER: Final = ConfigDef.of(
    Setting(
        "isolation.level",
        Type.STRING,
        "read_uncommitted",
        "Whether aborted transactions are left out.",
        OneOf(("read_committed", "read_uncommitted")),
    ),
    Setting(
        "auto.offset.reset",
        Type.STRING,
        "earliest",
        "Where a partition without a position begins.",
        OneOf(("earliest", "latest")),
    ),
    Setting("fetch.max.bytes", Type.INT, None, "Most bytes of one fetch.", AtLeast(0, nullable=True)),
    Setting(
        "max.partition.fetch.bytes",
        Type.INT,
        None,
        "Most bytes of one partition in a fetch.",
        AtLeast(0, nullable=True),
    ),
    Setting("fetch.max.wait.ms", Type.INT, None, "How long a fetch waits for records.", AtLeast(0, nullable=True)),
    Setting("fetch.min.bytes", Type.INT, None, "What a fetch waits for.", AtLeast(0, nullable=True)),
    Setting("client.rack", Type.STRING, "", "Read from followers in this rack."),
)


@dataclass(frozen=True)
class MirrorSourceSettings:
    """The settings of one flow's source connector.

    Bytes, milliseconds and seconds as the names say; None in a fetch setting means that the user named nothing.
    ``refresh_topics_interval_s`` is None where refreshing is off. ``spark`` holds the ``spark.*`` keys.
    ``skips_refused``: records that the target refuses for good are left out, each with a line of its own where
    ``logs_skipped``. ``compression`` is for batches that come uncompressed. ``warnings`` are sentences for the log.
    """

    name: str
    enabled: bool
    source_alias: str
    target_alias: str
    tasks_max: int
    topic_filter: TopicFilter
    policy: ReplicationPolicy
    heartbeats_replication: bool
    replication_factor: int
    refresh_topics_interval_s: int | None
    read_committed: bool
    auto_offset_reset: str
    fetch_max_bytes: int | None
    max_partition_fetch_bytes: int | None
    fetch_max_wait_ms: int | None
    fetch_min_bytes: int | None
    client_rack: str
    skips_refused: bool
    logs_skipped: bool
    compression: Compression
    offsets_topic: str
    offsets_topic_partitions: int
    offsets_topic_replication_factor: int
    commit_interval_ms: int
    lease_ms: int
    epoch_ms: int
    link_listener: str
    link_advertised_address: str
    spark: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def flow(self) -> str:
        return f"{self.source_alias}->{self.target_alias}"

    def should_mirror(self, topic: str) -> bool:
        """Whether a topic of the source is mirrored."""
        return should_mirror(
            topic,
            topic_filter=self.topic_filter,
            policy=self.policy,
            target_alias=self.target_alias,
            heartbeats_replication=self.heartbeats_replication,
        )

    def remote_topic(self, topic: str) -> str:
        """The name on the target of a topic of the source."""
        return self.policy.format_remote_topic(self.source_alias, topic)


def source_settings(connector: Mapping[str, str], worker: Mapping[str, str]) -> MirrorSourceSettings:
    """The settings in a source connector's configuration and its worker's, references resolved.

    Raises:
        ConfigError: A value is missing or refused; the key is the connector's or worker's own, such as ``tasks.max``,
            or with its prefix, such as ``consumer.isolation.level``.
    """
    values = SOURCE.parse(connector)
    offsets = WORKER.parse(worker)
    consumer = _client_values(CONSUMER, connector_client(connector, "source", "consumer"), "consumer.")
    _refuse_what_changes_records(connector, worker)
    return MirrorSourceSettings(
        name=values.string("name"),
        enabled=values.boolean("enabled"),
        source_alias=values.string("source.cluster.alias"),
        target_alias=values.string("target.cluster.alias"),
        tasks_max=values.integer("tasks.max"),
        topic_filter=_topic_filter(values),
        policy=make_policy(connector),
        heartbeats_replication=values.boolean("heartbeats.replication.enabled"),
        replication_factor=values.integer("replication.factor"),
        refresh_topics_interval_s=_interval(values, "refresh.topics"),
        read_committed=consumer["isolation.level"] == "read_committed",
        auto_offset_reset=consumer.string("auto.offset.reset"),
        fetch_max_bytes=_optional(consumer, "fetch.max.bytes"),
        max_partition_fetch_bytes=_optional(consumer, "max.partition.fetch.bytes"),
        fetch_max_wait_ms=_optional(consumer, "fetch.max.wait.ms"),
        fetch_min_bytes=_optional(consumer, "fetch.min.bytes"),
        client_rack=consumer.string("client.rack"),
        skips_refused=values.string("errors.tolerance") == "all",
        logs_skipped=values.boolean("errors.log.enable"),
        compression=_compression(record_producer(connector, worker)),
        offsets_topic=offsets.string("offset.storage.topic"),
        offsets_topic_partitions=offsets.integer("offset.storage.partitions"),
        offsets_topic_replication_factor=offsets.integer("offset.storage.replication.factor"),
        commit_interval_ms=offsets.integer("offset.flush.interval.ms"),
        lease_ms=values.integer("lease.ms"),
        epoch_ms=values.integer("copy.epoch.ms"),
        link_listener=values.string("link.listener"),
        link_advertised_address=values.string("link.advertised.address"),
        spark={key: value for key, value in connector.items() if key.startswith("spark.")},
        warnings=values.warnings,
    )


def _compression(producer: Mapping[str, str]) -> Compression:
    values = _client_values(PRODUCER, producer, "producer.")
    name = values.string("compression.type")
    level = f"compression.{name}.level"
    return Compression(CODEC_NAMES.index(name), values.integer(level) if level in PRODUCER.settings else None)


def _interval(values: Values, name: str) -> int | None:
    return values.integer(f"{name}.interval.seconds") if values.boolean(f"{name}.enabled") else None


def _optional(values: Values, name: str) -> int | None:
    return None if values[name] is None else values.integer(name)


def _client_values(config: ConfigDef, props: Mapping[str, str], prefix: str) -> Values:
    try:
        return config.parse(props)
    except ConfigError as error:
        key = error.key or ""
        raise ConfigError(error.message.replace(key, prefix + key, 1), prefix + key) from None


def _topic_filter(values: Values) -> TopicFilter:
    key = "topic.filter.class"
    if values.string(key) not in _DEFAULT_TOPIC_FILTERS:
        raise ConfigError(f"{key} {values.string(key)} is not known; it can be {_DEFAULT_TOPIC_FILTERS[0]}", key)
    return DefaultTopicFilter(values.strings("topics"), values.strings("topics.exclude"))


def _refuse_what_changes_records(connector: Mapping[str, str], worker: Mapping[str, str]) -> None:
    """Raise where records would have to change, or promises be made that are not kept: a log line is not enough."""
    for key in ("key.converter", "value.converter", "header.converter"):
        converter = connector.get(key, worker.get(key, BYTE_ARRAY_CONVERTER)).strip()
        if converter != BYTE_ARRAY_CONVERTER:
            raise ConfigError(f"{key} {converter} is not supported yet; it can be {BYTE_ARRAY_CONVERTER}", key)
    for key in ("transforms", "predicates"):
        if connector.get(key, "").strip():
            raise ConfigError(f"{key} is not supported yet: records would arrive unchanged; remove it", key)
    if connector.get("exactly.once.support", "").strip().lower() == "required":
        key = "exactly.once.support"
        raise ConfigError(f"{key} = required is not supported yet; remove it", key)
