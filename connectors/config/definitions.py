"""Declare each setting of the three connectors once, Kafka's (4.3, ``MirrorSourceConfig`` and the others) and ours."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from connect.core.config.config_def import (
    REQUIRED,
    AtLeast,
    ConfigDef,
    Importance,
    OneOf,
    PluginClass,
    Setting,
    Type,
    ValidList,
)
from connect.core.config.config_def import long as _long
from connect.core.config.config_def import text as _text
from connect.core.config.connector_settings import CONNECTOR
from connect.core.config.security_settings import SECURITY
from connectors.formats.gap import OnSourceGap, OnTopicRecreated
from connectors.policy import DEFAULT_POLICY_CLASS, MAPPING_POLICY_CLASS, find_policy, known_policies

ACL_RESOURCE_NAMES: Final = {
    "TOPIC": "topic",
    "GROUP": "group",
    "TRANSACTIONAL_ID": "transactional-id",
    "CLUSTER": "cluster",
}
#: Words of ``sync.acls.resources``.
RESOURCES: Final = tuple(ACL_RESOURCE_NAMES.values())


_MIRROR: Final = "org.apache.kafka.connect.mirror."
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


def _boolean(name: str, default: bool, doc: str) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc)


def _choice(name: str, of: type[StrEnum], doc: str, removed: Mapping[str, str] | None = None) -> Setting:
    """The first one is the default."""
    values = tuple(of)
    check = OneOf(tuple(one.value for one in values), removed=removed or {})
    return Setting(name, Type.STRING, values[0].value, doc, check)


def _patterns(name: str, default: str, doc: str) -> Setting:
    return Setting(name, Type.LIST, tuple(default.split(", ")), doc, ValidList(), _HIGH)


def _class(name: str, default: str | None, doc: str) -> Setting:
    return Setting(name, Type.CLASS, default, doc)


def _factor(name: str, doc: str) -> Setting:
    return Setting(name, Type.SHORT, 3, doc)


#: Of the three connectors (Kafka's ``MirrorConnectorConfig``).
_COMMON: Final = (
    CONNECTOR
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
            PluginClass(find_policy, known=known_policies),
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
    | SECURITY.only("security.protocol")
    | ConfigDef.of(Setting("config.providers", Type.LIST, (), "Names of config providers.", ValidList()))
    | SECURITY
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
    _text(
        "replication.policy.mapping",
        "",
        f"Rules of {MAPPING_POLICY_CLASS}, such as orders.(.*) -> $source.$1.orders; the first that matches counts.",
    ),
    _text(
        "replication.policy.mapping.unmatched",
        "prefix",
        "Names of topics that no rule matches: with the alias in front, or kept.",
        check=OneOf(("prefix", "keep")),
    ),
    _long("lease.ms", 5000, "How long a slice goes on writing without a word from its worker.", AtLeast(1000, 600_000)),
    _long("copy.epoch.ms", 3_600_000, "Length of one Spark job of the copy.", AtLeast(1000, 86_400_000)),
    _choice(
        "on.source.gap", OnSourceGap, "What is done where the source lost records that were to be copied, or were."
    ),
    _choice(
        "on.topic.recreated",
        OnTopicRecreated,
        "What to do when a topic was recreated: stop its partitions, or copy it again from its beginning.",
        removed={
            "new-remote-topic": "this policy was removed. Set fail (stop the partition) or restart (copy the recreated "
            "topic from its beginning into the same remote topic). Remote topics made under new-remote-topic stay as "
            "they are"
        },
    ),
    _text("transform.sql", "", "A Spark SQL query that each record goes through: SELECT ... FROM records WHERE ..."),
    _text(
        "transform.topic",
        "${topic}",
        "The topic to fill, of those that transform.sql or transforms send records to; ${topic} is the source topic.",
    ),
    Setting(
        "transform.other.topics",
        Type.LIST,
        (),
        "Topics that records are sent to and other connectors fill: these records are left out.",
        ValidList(),
    ),
    _text(
        "initial.offsets.group",
        "",
        "Group of the source, such as MirrorMaker 1's, at whose offsets partitions without a stored one begin.",
    ),
    _text("link.listener", "127.0.0.1:0", "Where the worker listens for its Spark tasks, host:port; TLS off loopback."),
    _long(
        "lag.interval.ms",
        10_000,
        "How often the source is asked for its ends, sizes and ages, for the lag in metrics; 0: never.",
        AtLeast(0, 86_400_000),
    ),
    _long(
        "refresh.look.interval.ms",
        5000,
        "How often the source is looked at in between, for changed topics and configurations; 0: never.",
        AtLeast(0, 86_400_000),
    ),
    _text(
        "topic.deletion.policy",
        "ignore",
        "What becomes of a remote topic whose source topic is gone: it stays, or is deleted after a delay.",
        check=OneOf(("ignore", "delete-after")),
    ),
    _long(
        "topic.deletion.delay.ms",
        7 * 86_400_000,
        "How long a source topic must have been gone before delete-after deletes its remote topic.",
        AtLeast(0),
    ),
    _text("link.advertised.address", "", "Host or host:port under which they reach it; empty: the listener's own."),
    Setting(
        "sync.acls.mode",
        Type.STRING,
        "topics",
        "Which access rules sync.topic.acls.enabled means: topics, as Java, or full.",
        OneOf(("topics", "full")),
    ),
    Setting(
        "sync.acls.resources",
        Type.LIST,
        ("topic", "group", "transactional-id"),
        "With full: the resource types whose rules are synced.",
        ValidList(RESOURCES, may_be_empty=False),
    ),
    _boolean("sync.acls.write.enabled", False, "With full: the right to write to a topic is one to its remote topic."),
    _boolean("sync.acls.dry.run", False, "Only log what syncing access rules would change."),
)

#: Of Kafka's ``DefaultConfigPropertyFilter``, which the connector's own declarations do not name.
USE_DEFAULTS_FROM: Final = ConfigDef.of(
    _text(
        "use.defaults.from",
        "target",
        "Whose value a setting gets that the source's topic has by default: target or source.",
        check=OneOf(("source", "target")),
    )
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
        _long("offset.lag.max", 100, "Records between two offset syncs of a partition."),
        _SYNCS_LOCATION,
        _boolean("emit.offset-syncs.enabled", True, "Write offset syncs."),
        _boolean("heartbeats.replication.enabled", True, "Mirror heartbeats topics whatever the filter says."),
        _FORMATS,
    )
    | OWN
)

#: Kafka's ``MirrorCheckpointConfig``.
CHECKPOINT: Final = _COMMON | ConfigDef.of(
    _POLL,
    _patterns("groups", ".*", "Groups whose offsets are mirrored: names and regular expressions."),
    _patterns("groups.exclude", "console-consumer-.*, connect-.*, __.*", "Groups left out; wins over groups."),
    _class("group.filter.class", _MIRROR + "DefaultGroupFilter", "Class that selects groups."),
    _boolean("refresh.groups.enabled", True, "Look for new groups."),
    _long("refresh.groups.interval.seconds", 600, "How often."),
    _boolean("emit.checkpoints.enabled", True, "Write checkpoints."),
    _long("emit.checkpoints.interval.seconds", 60, "How often."),
    _boolean("sync.group.offsets.enabled", False, "Write translated offsets to the target's groups."),
    _long("sync.group.offsets.interval.seconds", 60, "How often."),
    _factor("checkpoints.topic.replication.factor", "Replication factor of the topic of checkpoints."),
    _SYNCS_LOCATION,
    _TOPIC_FILTER,
    _FORMATS,
)

#: Kafka's ``MirrorHeartbeatConfig``.
HEARTBEAT: Final = _COMMON | ConfigDef.of(
    _boolean("emit.heartbeats.enabled", True, "Write heartbeats."),
    _long("emit.heartbeats.interval.seconds", 1, "How often."),
    _factor("heartbeats.topic.replication.factor", "Replication factor of the topic of heartbeats."),
)
