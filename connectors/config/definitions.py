"""Declare each setting of the three connectors once, Kafka's (4.3, ``MirrorSourceConfig`` and the others) and ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
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
from connect.core.config.config_def import class_name as _class
from connect.core.config.config_def import flag as _boolean
from connect.core.config.config_def import integer as _integer
from connect.core.config.config_def import long as _long
from connect.core.config.config_def import short as _short
from connect.core.config.config_def import text as _text
from connect.core.config.connector_settings import CONNECTOR
from connect.core.config.security_settings import SECURITY
from connectors.config.client_config import DEFAULT_FORWARDING_ADMIN, find_forwarding_admin, known_forwarding_admins
from connectors.formats.gap import OnSourceGap, OnTopicRecreated
from connectors.policy import DEFAULT_POLICY_CLASS, MAPPING_POLICY_CLASS, find_policy, known_policies

ACL_RESOURCE_NAMES: Final = {
    "TOPIC": "topic",
    "GROUP": "group",
    "TRANSACTIONAL_ID": "transactional-id",
    "CLUSTER": "cluster",
}
#: Values of ``sync.acls.resources``.
RESOURCES: Final = tuple(ACL_RESOURCE_NAMES.values())


_MIRROR: Final = "org.apache.kafka.connect.mirror."
_HIGH: Final = Importance.HIGH


def _choice(name: str, values: Iterable[str], doc: str, removed: Mapping[str, str] | None = None) -> Setting:
    """Declare a setting whose default is the first value."""
    first, *others = map(str, values)
    return _text(name, first, doc, check=OneOf((first, *others), removed=removed or {}))


def _list(name: str, default: tuple[str, ...], doc: str, check: ValidList | None = None) -> Setting:
    return Setting(name, Type.LIST, default, doc, check or ValidList())


def _patterns(name: str, default: str, doc: str) -> Setting:
    return replace(_list(name, tuple(default.split(", ")), doc), importance=_HIGH)


def _factor(name: str, doc: str) -> Setting:
    return _short(name, 3, doc)


#: Settings of all three connectors (Kafka's ``MirrorConnectorConfig``).
_COMMON: Final = (
    CONNECTOR
    | ConfigDef.of(
        _boolean("enabled", True, "Whether the flow is mirrored. In a properties file the default is false."),
        _text("source.cluster.alias", REQUIRED, "Alias of the source cluster.", _HIGH),
        _text("target.cluster.alias", "target", "Alias of the target cluster.", _HIGH),
        _long("admin.timeout.ms", 60_000, "Timeout of administrative requests."),
        _class(
            "replication.policy.class",
            DEFAULT_POLICY_CLASS,
            "How remote topics are named.",
            check=PluginClass(find_policy, known=known_policies),
        ),
        _text("replication.policy.separator", ".", "Separator between alias and topic."),
        _boolean(
            "replication.policy.internal.topic.separator.enabled",
            True,
            "Also use the separator in the names of checkpoint and offset-sync topics.",
        ),
        _class(
            "forwarding.admin.class",
            DEFAULT_FORWARDING_ADMIN,
            "Class in Python through which topics and ACLs are changed.",
            check=PluginClass(find_forwarding_admin, known=known_forwarding_admins),
        ),
        _list("metric.reporters", ("org.apache.kafka.common.metrics.JmxReporter",), "Classes that report metrics."),
    )
    | SECURITY.only("security.protocol")
    | ConfigDef.of(_list("config.providers", (), "Names of config providers."))
    | SECURITY
)

_FORMATS: Final = _list(
    "metric.names.formats", ("legacy",), "Formats of metric names.", ValidList(("legacy", "new"), may_be_empty=False)
)
_SYNCS_LOCATION: Final = _choice(
    "offset-syncs.topic.location", ("source", "target"), "Cluster that holds the topic of offset syncs."
)
_POLL: Final = _long("consumer.poll.timeout.ms", 1000, "How long Java's consumer waits for records.")
_TOPIC_FILTER: Final = _class("topic.filter.class", _MIRROR + "DefaultTopicFilter", "Class that selects topics.")

#: Keys that Java does not have.
OWN: Final = ConfigDef.of(
    _text(
        "replication.policy.mapping",
        "",
        f"Rules of {MAPPING_POLICY_CLASS}, such as orders.(.*) -> $source.$1.orders; the first match applies.",
    ),
    _choice(
        "replication.policy.mapping.unmatched",
        ("prefix", "keep"),
        "Names of topics that no rule matches: prefix adds the alias, keep leaves them unchanged.",
    ),
    _long(
        "lease.ms", 5000, "How long a slice keeps writing without contact to its worker.", check=AtLeast(1000, 600_000)
    ),
    _long("copy.epoch.ms", 3_600_000, "Length of one Spark job of the copy.", check=AtLeast(1000, 86_400_000)),
    _choice("on.source.gap", OnSourceGap, "What to do if the source has lost records, copied already or not."),
    _choice(
        "on.topic.recreated",
        OnTopicRecreated,
        "What to do if a topic was recreated: stop its partitions, or copy it again from its beginning.",
        removed={
            "new-remote-topic": "this policy was removed. Set fail (stop the partition) or restart (copy the recreated "
            "topic from its beginning into the same remote topic). Remote topics made under new-remote-topic are kept"
        },
    ),
    _text("transform.sql", "", "Spark SQL query applied to each record: SELECT ... FROM records WHERE ..."),
    _text(
        "transform.topic",
        "${topic}",
        "The topic to fill, if transform.sql or transforms send records to several; ${topic} is the source topic.",
    ),
    _list(
        "transform.other.topics",
        (),
        "Topics that receive records and that other connectors fill: these records are skipped.",
    ),
    _text(
        "initial.offsets.group",
        "",
        "Group of the source, such as MirrorMaker 1's, at whose offsets partitions without a stored offset begin.",
    ),
    _text("link.listener", "127.0.0.1:0", "host:port where the worker listens for Spark tasks. TLS unless loopback."),
    _long(
        "lag.interval.ms",
        10_000,
        "How often to read the source's end offsets, sizes and ages, for lag metrics. 0: never.",
        check=AtLeast(0, 86_400_000),
    ),
    _long(
        "refresh.look.interval.ms",
        5000,
        "How often to check the source for changed topics and configurations between refreshes. 0: never.",
        check=AtLeast(0, 86_400_000),
    ),
    _choice(
        "topic.deletion.policy",
        ("ignore", "delete-after"),
        "What to do with a remote topic if its source topic was deleted: keep it, or delete it after a delay.",
    ),
    _long(
        "topic.deletion.delay.ms",
        7 * 86_400_000,
        "How long a source topic must have been deleted before delete-after deletes its remote topic.",
        check=AtLeast(0),
    ),
    _text("link.advertised.address", "", "Host or host:port where Spark tasks reach the link; empty: the listener's."),
    _choice(
        "sync.acls.mode", ("topics", "full"), "Which ACLs sync.topic.acls.enabled syncs: topics, as Java does, or full."
    ),
    _list(
        "sync.acls.resources",
        ("topic", "group", "transactional-id"),
        "With full: resource types whose ACLs are synced.",
        ValidList(RESOURCES, may_be_empty=False),
    ),
    _boolean("sync.acls.write.enabled", False, "With full: grant writers of a topic write access to its remote topic."),
    _boolean("sync.acls.dry.run", False, "Only log what ACL sync would change."),
)

#: A setting of Kafka's ``DefaultConfigPropertyFilter`` that the connector does not declare.
USE_DEFAULTS_FROM: Final = ConfigDef.of(
    _text(
        "use.defaults.from",
        "target",
        "Which default applies to a setting that the source topic has by default: the target's or the source's.",
        check=OneOf(("source", "target")),
    )
)

#: Kafka's ``MirrorSourceConfig`` and our own keys.
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
        _long("refresh.topics.interval.seconds", 600, "How often to look for new topics and partitions."),
        _boolean("sync.topic.configs.enabled", True, "Mirror topic configurations."),
        _long("sync.topic.configs.interval.seconds", 600, "How often to mirror topic configurations."),
        _boolean("sync.topic.acls.enabled", True, "Mirror read rights on topics."),
        _long("sync.topic.acls.interval.seconds", 600, "How often to mirror ACLs."),
        _integer("replication.factor", 2, "Replication factor of new remote topics."),
        _factor("offset-syncs.topic.replication.factor", "Replication factor of the topic of offset syncs."),
        _long("offset.lag.max", 100, "Records between two offset syncs of a partition."),
        _SYNCS_LOCATION,
        _boolean("emit.offset-syncs.enabled", True, "Write offset syncs."),
        _boolean("heartbeats.replication.enabled", True, "Mirror heartbeats topics whatever the topic filter says."),
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
    _long("refresh.groups.interval.seconds", 600, "How often to look for new groups."),
    _boolean("emit.checkpoints.enabled", True, "Write checkpoints."),
    _long("emit.checkpoints.interval.seconds", 60, "How often to write checkpoints."),
    _boolean("sync.group.offsets.enabled", False, "Write translated offsets to the target's groups."),
    _long("sync.group.offsets.interval.seconds", 60, "How often to write translated offsets."),
    _factor("checkpoints.topic.replication.factor", "Replication factor of the topic of checkpoints."),
    _SYNCS_LOCATION,
    _TOPIC_FILTER,
    _FORMATS,
)

#: Kafka's ``MirrorHeartbeatConfig``.
HEARTBEAT: Final = _COMMON | ConfigDef.of(
    _boolean("emit.heartbeats.enabled", True, "Write heartbeats."),
    _long("emit.heartbeats.interval.seconds", 1, "How often to write heartbeats."),
    _factor("heartbeats.topic.replication.factor", "Replication factor of the topic of heartbeats."),
)
