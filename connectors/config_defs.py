"""The settings of the three connectors and ours, each declared once (Kafka 4.3, ``MirrorSourceConfig`` and its kin)."""

from __future__ import annotations

from typing import Final

from connect.core.config import (
    REQUIRED,
    AtLeast,
    ConfigDef,
    ConnectorName,
    Importance,
    KnownClass,
    OneOf,
    Required,
    Setting,
    Type,
    UniqueAliases,
    ValidList,
    Value,
)
from connect.kafka.keys import SECURITY
from connectors.policy import DEFAULT_POLICY_CLASS, POLICIES

_MIRROR: Final = "org.apache.kafka.connect.mirror."
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


def _boolean(name: str, default: bool, doc: str) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc)


def _long(name: str, default: int, doc: str, check: AtLeast | None = None) -> Setting:
    return Setting(name, Type.LONG, default, doc, check)


def _text(name: str, default: Value | Required, doc: str, importance: Importance = Importance.LOW) -> Setting:
    return Setting(name, Type.STRING, default, doc, importance=importance)


def _patterns(name: str, default: str, doc: str) -> Setting:
    return Setting(name, Type.LIST, tuple(default.split(", ")), doc, ValidList(), _HIGH)


def _class(name: str, default: str | None, doc: str) -> Setting:
    return Setting(name, Type.CLASS, default, doc)


def _factor(name: str, doc: str) -> Setting:
    return Setting(name, Type.SHORT, 3, doc)


#: Of every connector (Kafka's ``ConnectorConfig``).
CONNECTOR: Final = ConfigDef.of(
    Setting("name", Type.STRING, REQUIRED, "The connector's name.", ConnectorName(), _HIGH),
    Setting("connector.class", Type.STRING, REQUIRED, "The connector's class.", importance=_HIGH),
    _text("connector.plugin.version", None, "Version of the connector.", _MEDIUM),
    Setting("tasks.max", Type.INT, 1, "Most tasks: the parallelism of the copy.", AtLeast(1), _HIGH),
    _boolean("tasks.max.enforce", True, "Fail a connector that makes more tasks than allowed."),
    _class("key.converter", None, "Converter of keys; null is the worker's."),
    _class("value.converter", None, "Converter of values; null is the worker's."),
    _class("header.converter", None, "Converter of headers; null is the worker's."),
    _text("key.converter.plugin.version", None, "Version of the converter of keys."),
    _text("value.converter.plugin.version", None, "Version of the converter of values."),
    _text("header.converter.plugin.version", None, "Version of the converter of headers."),
    Setting("transforms", Type.LIST, (), "Aliases of transformations.", UniqueAliases()),
    Setting("predicates", Type.LIST, (), "Aliases of predicates.", UniqueAliases()),
    Setting(
        "config.action.reload", Type.STRING, "restart", "What a changed secret leads to.", OneOf(("none", "restart"))
    ),
    Setting("config.providers", Type.LIST, (), "Names of config providers.", ValidList()),
    Setting(
        "errors.retry.timeout", Type.LONG, 0, "How long a failed operation is tried again, in ms.", importance=_MEDIUM
    ),
    Setting("errors.retry.delay.max.ms", Type.LONG, 60_000, "Longest wait between attempts.", importance=_MEDIUM),
    Setting("errors.tolerance", Type.STRING, "none", "Skip records that fail.", OneOf(("none", "all")), _MEDIUM),
    Setting("errors.log.enable", Type.BOOLEAN, False, "Log failed operations.", importance=_MEDIUM),
    Setting("errors.log.include.messages", Type.BOOLEAN, False, "Log the records that failed.", importance=_MEDIUM),
)

#: Of the three connectors (Kafka's ``MirrorConnectorConfig``).
_COMMON: Final = (
    CONNECTOR
    | SECURITY
    | ConfigDef.of(
        _boolean("enabled", True, "Whether the flow is mirrored; false in a properties file unless set."),
        _text("source.cluster.alias", REQUIRED, "Alias of the source cluster.", _HIGH),
        _text("target.cluster.alias", "target", "Alias of the target cluster.", _HIGH),
        _long("admin.timeout.ms", 60_000, "Bound for administrative work."),
        Setting(
            "replication.policy.class",
            Type.CLASS,
            DEFAULT_POLICY_CLASS,
            "How remote topics are named.",
            KnownClass(POLICIES.__contains__),
        ),
        _text("replication.policy.separator", ".", "What stands between alias and topic."),
        _boolean(
            "replication.policy.internal.topic.separator.enabled",
            True,
            "Use the separator in the names of checkpoint and offset-sync topics too.",
        ),
        _class(
            "forwarding.admin.class",
            "org.apache.kafka.clients.admin.ForwardingAdmin",
            "Class for administrative calls.",
        ),
        Setting(
            "metric.reporters",
            Type.LIST,
            ("org.apache.kafka.common.metrics.JmxReporter",),
            "Classes that report metrics.",
            ValidList(),
        ),
    )
)

_FORMATS: Final = Setting(
    "metric.names.formats",
    Type.LIST,
    ("legacy",),
    "Names that metrics are given.",
    ValidList(("legacy", "new"), may_be_empty=False),
)
_SYNCS_LOCATION: Final = Setting(
    "offset-syncs.topic.location",
    Type.STRING,
    "source",
    "Cluster that holds the topic of offset syncs.",
    OneOf(("source", "target")),
)
_POLL: Final = _long("consumer.poll.timeout.ms", 1000, "How long Java's consumer waits for records.")
_TOPIC_FILTER: Final = _class("topic.filter.class", _MIRROR + "DefaultTopicFilter", "Class that selects topics.")

#: Keys that Java does not have.
OWN: Final = ConfigDef.of(
    _long("lease.ms", 5000, "How long a slice goes on writing without a word from its worker.", AtLeast(1000, 600_000)),
    _long("copy.epoch.ms", 60_000, "Length of one Spark job of the copy.", AtLeast(1000, 86_400_000)),
    _text("link.listener", "127.0.0.1:0", "Where the worker listens for its Spark tasks, host:port; TLS off loopback."),
    _text("link.advertised.address", "", "Host or host:port under which they reach it; empty: the listener's own."),
)

#: Kafka's ``MirrorSourceConfig``, and our own keys.
SOURCE: Final = (
    _COMMON
    | ConfigDef.of(
        _patterns("topics", ".*", "Topics to mirror: names and regular expressions."),
        _patterns("topics.exclude", r"mm2.*\.internal, .*\.replica, __.*", "Topics not to mirror; wins over topics."),
        _patterns(
            "config.properties.exclude",
            "follower.replication.throttled.replicas, leader.replication.throttled.replicas, "
            "message.timestamp.difference.max.ms, log.message.timestamp.before.max.ms, "
            "log.message.timestamp.after.max.ms, message.timestamp.type, unclean.leader.election.enable, "
            "min.insync.replicas",
            "Topic configurations not to mirror.",
        ),
        _TOPIC_FILTER,
        _class(
            "config.property.filter.class",
            _MIRROR + "DefaultConfigPropertyFilter",
            "Class that selects configurations.",
        ),
        _POLL,
        _boolean("refresh.topics.enabled", True, "Look for new topics and partitions."),
        _long("refresh.topics.interval.seconds", 600, "How often."),
        _boolean("sync.topic.configs.enabled", True, "Mirror topic configurations."),
        _long("sync.topic.configs.interval.seconds", 600, "How often."),
        _boolean("sync.topic.acls.enabled", True, "Mirror read rights on topics."),
        _long("sync.topic.acls.interval.seconds", 600, "How often."),
        Setting("replication.factor", Type.INT, 2, "Replication factor of new remote topics."),
        _factor("offset-syncs.topic.replication.factor", "Replication factor of the topic of offset syncs."),
        _SYNCS_LOCATION,
        _long("offset.lag.max", 100, "Records between two offset syncs of a partition."),
        _boolean("emit.offset-syncs.enabled", True, "Write offset syncs."),
        _boolean("heartbeats.replication.enabled", True, "Mirror heartbeats topics whatever the filter says."),
        _FORMATS,
    )
    | OWN
)

#: Kafka's ``MirrorCheckpointConfig``.
CHECKPOINT: Final = _COMMON | ConfigDef.of(
    _patterns("groups", ".*", "Groups whose offsets are mirrored: names and regular expressions."),
    _patterns("groups.exclude", "console-consumer-.*, connect-.*, __.*", "Groups left out; wins over groups."),
    _class("group.filter.class", _MIRROR + "DefaultGroupFilter", "Class that selects groups."),
    _TOPIC_FILTER,
    _POLL,
    _boolean("refresh.groups.enabled", True, "Look for new groups."),
    _long("refresh.groups.interval.seconds", 600, "How often."),
    _boolean("emit.checkpoints.enabled", True, "Write checkpoints."),
    _long("emit.checkpoints.interval.seconds", 60, "How often."),
    _boolean("sync.group.offsets.enabled", False, "Write translated offsets to the target's groups."),
    _long("sync.group.offsets.interval.seconds", 60, "How often."),
    _factor("checkpoints.topic.replication.factor", "Replication factor of the topic of checkpoints."),
    _SYNCS_LOCATION,
    _FORMATS,
)

#: Kafka's ``MirrorHeartbeatConfig``.
HEARTBEAT: Final = _COMMON | ConfigDef.of(
    _boolean("emit.heartbeats.enabled", True, "Write heartbeats."),
    _long("emit.heartbeats.interval.seconds", 1, "How often."),
    _factor("heartbeats.topic.replication.factor", "Replication factor of the topic of heartbeats."),
)
