"""Declares the configs of a distributed worker, and explains Java's keys that have no effect here.

The declarations follow Kafka's ``WorkerConfig`` and ``DistributedConfig``. ``IGNORED`` holds the keys of a worker, or
of a cluster in an ``mm2.properties``, that have no effect, each with the rest of a sentence that begins with the key.
A test compares them with the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from connect.core.config.client_settings import COMMON, changed
from connect.core.config.config_def import (
    REQUIRED,
    AtLeast,
    ConfigDef,
    Importance,
    OneOf,
    Setting,
    ValidList,
    Value,
    class_name,
    flag,
    integer,
    invalid,
    long,
    short,
    strings,
    text,
)
from connect.core.config.connector_access import ACCESS
from connect.core.config.rest_settings import REST
from connect.core.config.security_settings import SECURITY
from connect.core.config.validation import PARTITIONS, REPLICATION_FACTOR, valid
from connect.core.herder_api import ALGORITHMS, is_known

_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_DAY_MS: Final = 24 * 60 * 60 * 1000


@valid(f"[{', '.join(ALGORITHMS)}]")
def _algorithm(name: str, value: Value) -> None:
    """Require a name of Java's ``Mac`` or ``KeyGenerator`` that this worker supports, or a list of such names."""
    if value == ():
        raise invalid(name, value, "At least one signature verification algorithm must be provided")
    for each in value if isinstance(value, tuple) else (value,):
        if not isinstance(each, str) or not is_known(each):
            raise invalid(
                name, each, f"the algorithm is not supported; the supported algorithms are: {', '.join(ALGORITHMS)}"
            )


_PROTOCOLS: Final = ("eager", "compatible", "sessioned")


@valid(f"[{', '.join(_PROTOCOLS)}]")
def _protocol(name: str, value: Value) -> None:
    if not isinstance(value, str) or value.lower() not in _PROTOCOLS:
        raise invalid(name, value, f"Invalid Connect protocol compatibility; it can be {', '.join(_PROTOCOLS)}")


def _factor(name: str, topic: str) -> Setting:
    return short(name, 3, f"Replication factor of the {topic} topic at creation.", check=REPLICATION_FACTOR)


_CONVERTERS: Final = ConfigDef.of(
    class_name("key.converter", REQUIRED, "Converter of record keys.", _HIGH),
    class_name("value.converter", REQUIRED, "Converter of record values.", _HIGH),
    class_name(
        "header.converter", "org.apache.kafka.connect.storage.SimpleHeaderConverter", "Converter of header values."
    ),
    text("key.converter.plugin.version", None, "Version of the converter of keys."),
    text("value.converter.plugin.version", None, "Version of the converter of values."),
    text("header.converter.plugin.version", None, "Version of the converter of headers."),
)

_PLUGINS: Final = ConfigDef.of(
    strings(
        "plugin.path",
        None,
        "Folders of Java plugins: no effect. Plugins here are Python packages.",
        check=ValidList(may_be_empty=False),
    ),
    text(
        "plugin.discovery",
        "hybrid_warn",
        "How Java discovers plugins: no effect.",
        check=OneOf(("ONLY_SCAN", "SERVICE_LOAD", "HYBRID_WARN", "HYBRID_FAIL"), any_case=True),
    ),
    strings("config.providers", (), "Names of config providers, for example for secrets.", check=ValidList()),
    text(
        "connector.client.config.override.policy",
        "All",
        "Which client settings connectors may override: All, None, Principal, Allowlist.",
        _MEDIUM,
    ),
    strings(
        "connector.client.config.override.allowlist",
        (),
        "Client settings that connectors may override under the policy Allowlist.",
        _MEDIUM,
        ValidList(),
    ),
)

_METRICS: Final = ConfigDef.of(
    long("metrics.sample.window.ms", 30_000, "Window of Java's metrics: no effect.", check=AtLeast(0)),
    integer("metrics.num.samples", 2, "Samples of Java's metrics: no effect.", check=AtLeast(1)),
    text("metrics.recording.level", "INFO", "No effect: see /metrics.", check=OneOf(("INFO", "DEBUG"))),
    strings(
        "metric.reporters",
        ("org.apache.kafka.common.metrics.JmxReporter",),
        "Java classes that report metrics: no effect, see /metrics.",
        check=ValidList(),
    ),
)

_WORK: Final = ConfigDef.of(
    long("task.shutdown.graceful.timeout.ms", 5000, "Longest wait for tasks to stop, for all tasks together."),
    long("offset.flush.interval.ms", 60_000, "Interval at which source offsets are committed."),
    long("offset.flush.timeout.ms", 5000, "Longest commit of source offsets. No effect under exactly-once."),
    flag("topic.creation.enable", True, "Create the topics that topic.creation.* of source connectors configures."),
    flag("topic.tracking.enable", True, "Track the topics that connectors use."),
    flag("topic.tracking.allow.reset", True, "Allow REST requests to reset the topics that a connector uses."),
    text(
        "exactly.once.source.support",
        "disabled",
        "Exactly-once for source connectors (KIP-618). In a running group set preparing first, then enabled.",
        _HIGH,
        OneOf(("DISABLED", "ENABLED", "PREPARING"), any_case=True),
    ),
)

_GROUP: Final = ConfigDef.of(
    text("group.id", REQUIRED, "Name of the group of workers.", _HIGH),
    integer("session.timeout.ms", 10_000, "Longest time without a heartbeat before the group removes a worker.", _HIGH),
    integer("rebalance.timeout.ms", 60_000, "Time that workers have to join a rebalance.", _HIGH),
    integer("heartbeat.interval.ms", 3000, "Interval of a worker's heartbeats to the group coordinator.", _HIGH),
    integer("worker.sync.timeout.ms", 3000, "Longest read of the config topic to its end.", _MEDIUM),
    integer("worker.unsync.backoff.ms", 300_000, "Wait before rejoining after a failed sync.", _MEDIUM),
    text("connect.protocol", "sessioned", "Protocol of the worker group.", check=_protocol),
    integer(
        "scheduled.rebalance.max.delay.ms",
        300_000,
        "Longest wait for a lost worker to return before its connectors and tasks are reassigned. Unless this is set, "
        "work under worker.lease.ms does not wait.",
        check=AtLeast(0, 2**31 - 1),
    ),
    integer("inter.worker.key.ttl.ms", 3_600_000, "Life of the session key of the group.", check=AtLeast(0, 2**31 - 1)),
    text("inter.worker.key.generation.algorithm", "HmacSHA256", "Session key algorithm.", check=_algorithm),
    integer(
        "inter.worker.key.size",
        None,
        "Bits of the session key; null: the algorithm's.",
        check=AtLeast(40, nullable=True),
    ),
    text("inter.worker.signature.algorithm", "HmacSHA256", "Algorithm of internal signatures.", check=_algorithm),
    strings(
        "inter.worker.verification.algorithms",
        ("HmacSHA256",),
        "Accepted signature algorithms; inter.worker.signature.algorithm must be one of them.",
        check=_algorithm,
    ),
)

_STORAGE: Final = ConfigDef.of(
    text("config.storage.topic", REQUIRED, "Topic of connector configs; always one partition.", _HIGH),
    _factor("config.storage.replication.factor", "config"),
    text("offset.storage.topic", REQUIRED, "Topic of source offsets.", _HIGH),
    integer("offset.storage.partitions", 25, "Partitions of the offset topic at creation.", check=PARTITIONS),
    _factor("offset.storage.replication.factor", "offset"),
    text("status.storage.topic", REQUIRED, "Topic of the states of connectors and tasks.", _HIGH),
    integer("status.storage.partitions", 5, "Partitions of the status topic at creation.", check=PARTITIONS),
    _factor("status.storage.replication.factor", "status"),
)

_CLIENT: Final = COMMON.only(
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
) | ConfigDef.of(
    changed(COMMON.settings["client.id"], "", _LOW),
    changed(COMMON.settings["receive.buffer.bytes"], 32_768),
    changed(COMMON.settings["request.timeout.ms"], 40_000),
    long("socket.connection.setup.timeout.ms", 10_000, "Timeout of the first attempt to connect.", check=AtLeast(0)),
    long(
        "socket.connection.setup.timeout.max.ms", 30_000, "Longest timeout of an attempt to connect.", check=AtLeast(0)
    ),
)

#: Keys that Java does not have.
OWN: Final = ConfigDef.of(
    integer(
        "worker.lease.ms",
        None,
        "How long connectors and tasks keep running without a response from the group coordinator; null: half of the "
        "session timeout, at most 5000.",
        check=AtLeast(1000, _DAY_MS, nullable=True),
    ),
    integer(
        "worker.progress.timeout.ms",
        30_000,
        "How long the worker's loop may block before it stops sending heartbeats and renewing the leases of its "
        "slices, like max.poll.interval.ms of a consumer.",
        check=AtLeast(1000, _DAY_MS),
    ),
    # Java's distribution leaves the class out of the worker's plugins for the same reason (KAFKA-13748).
    flag(
        "file.stream.source.enable",
        False,
        "Allow FileStreamSource connectors, which can read any file that the worker can read.",
    ),
    flag("audit.enable", False, "Record who changed what in the audit topic, which is then created."),
    text("audit.topic", "", "Name of the audit topic. Empty: mm2-audit.<group.id>.internal."),
    long(
        "audit.retention.ms", 90 * _DAY_MS, "Retention of the audit topic at creation; -1: no limit.", check=AtLeast(-1)
    ),
    *ACCESS.settings.values(),
)

#: Every setting of a distributed worker.
WORKER: Final = _CLIENT | _CONVERTERS | _WORK | _PLUGINS | _METRICS | _GROUP | _STORAGE | REST | SECURITY | OWN
#: Keys with these prefixes are those of a converter.
CONVERTER_PREFIXES: Final = ("key.converter.", "value.converter.", "header.converter.")
#: Keys with these prefixes name an internal topic, or are configs of one.
STORAGE_PREFIXES: Final = ("config.storage.", "offset.storage.", "status.storage.")
#: Java gives these to metrics reporters (KIP-606).
METRICS_CONTEXT: Final = "metrics.context."
#: Keys of the control link, which connectors declare.
LINK: Final = ("link.listener", "link.advertised.address")
#: The configs that a topic can have (Kafka's ``LogConfig``), those of releases before 4.0 included.
TOPIC_CONFIGS: Final = frozenset(
    (
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    )
)


_RECONNECT: Final = "a lost connection is reopened with a built-in backoff of up to a few seconds"
_SETUP: Final = "request.timeout.ms also limits the time to connect"
_REBOOTSTRAP: Final = "the addresses in bootstrap.servers are tried whenever no known broker is available"
_METRICS_PAGE: Final = "/metrics serves the current value of all metrics to Prometheus"

_INSTEAD: Final[Mapping[str, str]] = {
    "client.dns.lookup": "all addresses of a name are tried, as with use_all_dns_ips",
    "metadata.max.age.ms": "metadata is refreshed when a leader has moved and when topics are needed",
    "metadata.recovery.rebootstrap.trigger.ms": _REBOOTSTRAP,
    "metadata.recovery.strategy": _REBOOTSTRAP,
    "metric.reporters": f"Java classes cannot be loaded here; {_METRICS_PAGE}",
    "metrics.num.samples": _METRICS_PAGE,
    "metrics.recording.level": _METRICS_PAGE,
    "metrics.sample.window.ms": _METRICS_PAGE,
    "reconnect.backoff.max.ms": _RECONNECT,
    "reconnect.backoff.ms": _RECONNECT,
    "socket.connection.setup.timeout.max.ms": _SETUP,
    "socket.connection.setup.timeout.ms": _SETUP,
}
IGNORED: Final[Mapping[str, str]] = {key: f"has no effect: {instead}" for key, instead in _INSTEAD.items()}


def why_ignored(key: str) -> str | None:
    """Return why one of Java's keys has no effect, without its subject; None if it has one, or is not known."""
    return f"has no effect: {_METRICS_PAGE}" if key.startswith(METRICS_CONTEXT) else IGNORED.get(key)


def storage_notice(key: str, prefix: str = "") -> str | None:
    """Return what is wrong with a key of an internal topic, which has one of ``STORAGE_PREFIXES``; None if nothing.
    ``prefix`` is what the file has before it."""
    kind, _, name = key.split(".", 2)
    if key == "config.storage.partitions":
        return "has no effect: the config topic always has one partition"
    if name == "cleanup.policy":
        return "has no effect: the topic is always compacted"
    if key in WORKER or name in TOPIC_CONFIGS:
        return None
    known = ("topic", "partitions", "replication.factor", *TOPIC_CONFIGS)
    hint = "".join(f"; is {prefix}{kind}.storage.{one} meant?" for one in get_close_matches(name, known, 1, 0.8))
    return f"is not known: brokers may refuse to create the topic with it{hint}"


def converter_notice(key: str) -> str | None:
    """Return why a key of a converter has no effect, without its subject; None if it has one."""
    is_schema = key.startswith(CONVERTER_PREFIXES) and key.endswith(".converter.schema.content")
    return "has no effect: it is for sinks, which do not run here" if is_schema else None
