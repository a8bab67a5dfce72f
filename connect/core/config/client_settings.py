"""Declares the configs of Kafka's clients, and the policies for what connectors may override of them.

* The configs have the defaults of Java's (``ProducerConfig``, ``ConsumerConfig``, ``AdminClientConfig``). A worker's
  clients are not Java's: the code that uses a config says what it means here.
* The override policies are those of KIP-458 (``ConnectorClientConfigOverridePolicy``).
* The keys of Java's clients are listed by name and by what they mean here. Names are those of Kafka 4.3
  (``ConsumerConfig``, ``ProducerConfig``, ``AdminClientConfig``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from connect.core.config.config_def import (
    REQUIRED,
    AtLeast,
    Check,
    ConfigDef,
    Importance,
    OneOf,
    Required,
    Setting,
    Type,
    ValidList,
    Value,
)
from connect.core.config.config_def import text as _text
from connect.core.config.security_settings import SECURITY
from connect.core.config.validation import GzipLevel, NonEmpty
from connect.core.errors import ConfigError

#: Java's default of ``transaction.timeout.ms``.
TRANSACTION_TIMEOUT_MS: Final = 60_000
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
_NOT_NEGATIVE: Final = AtLeast(0)
_POSITIVE: Final = AtLeast(1)
_BUFFER: Final = AtLeast(-1)
_RETRIES: Final = 2**31 - 1


def _int(
    name: str, default: int, doc: str, level: Importance = _MEDIUM, check: Check | None = _NOT_NEGATIVE
) -> Setting:
    return Setting(name, Type.INT, default, doc, check, level)


def _long(name: str, default: int, doc: str, level: Importance = _LOW, check: Check | None = _NOT_NEGATIVE) -> Setting:
    return Setting(name, Type.LONG, default, doc, check, level)


def _flag(name: str, default: bool, doc: str, level: Importance = _LOW) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc, importance=level)


def _class(name: str, default: str | Required | None, doc: str, level: Importance) -> Setting:
    return Setting(name, Type.CLASS, default, doc, importance=level)


def _list(name: str, default: tuple[str, ...], doc: str, level: Importance = _LOW) -> Setting:
    return Setting(name, Type.LIST, default, doc, ValidList(), level)


def _changed(setting: Setting, default: Value, level: Importance | None = None) -> Setting:
    return replace(setting, default=default, importance=setting.importance if level is None else level)


_COMMON: Final = ConfigDef.of(
    Setting("bootstrap.servers", Type.LIST, REQUIRED, "Brokers to begin with.", ValidList(may_be_empty=False), _HIGH),
    _text(
        "client.dns.lookup",
        "use_all_dns_ips",
        "How names of brokers are looked up.",
        _MEDIUM,
        OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    ),
    _text("client.id", "", "Name of the client in the brokers' logs and quotas.", _MEDIUM),
    _int("send.buffer.bytes", 131_072, "Send buffer of sockets; -1 for the system's.", _MEDIUM, _BUFFER),
    _int("receive.buffer.bytes", 65_536, "Receive buffer of sockets; -1 for the system's.", _MEDIUM, _BUFFER),
    _long("reconnect.backoff.ms", 50, "First wait before connecting again."),
    _long("reconnect.backoff.max.ms", 1000, "Longest wait before connecting again."),
    _long("retry.backoff.ms", 100, "First wait before a failed request is sent again."),
    _long("retry.backoff.max.ms", 1000, "Longest wait before a failed request is sent again."),
    _flag("enable.metrics.push", True, "Whether brokers may ask for the client's metrics."),
    _int("request.timeout.ms", 30_000, "How long a request may stay unanswered."),
    _long("metadata.max.age.ms", 300_000, "When metadata is asked for anew."),
    _long("metrics.sample.window.ms", 30_000, "Window of Java's metrics."),
    _int("metrics.num.samples", 2, "Samples of Java's metrics.", _LOW, _POSITIVE),
    _text("metrics.recording.level", "INFO", "How much Java measures.", _LOW, OneOf(("INFO", "DEBUG", "TRACE"))),
    _list("metric.reporters", ("org.apache.kafka.common.metrics.JmxReporter",), "Java classes that report metrics."),
    _long("socket.connection.setup.timeout.ms", 10_000, "How long connecting may take at first.", _MEDIUM, None),
    _long("socket.connection.setup.timeout.max.ms", 30_000, "How long connecting may take at most.", _MEDIUM, None),
    _long("connections.max.idle.ms", 540_000, "When an unused connection is closed.", _MEDIUM, None),
    _text("security.providers", None, "Java's security providers."),
    _text(
        "metadata.recovery.strategy",
        "rebootstrap",
        "What to do when no known broker answers.",
        _LOW,
        OneOf(("REBOOTSTRAP", "NONE"), any_case=True),
    ),
    _long("metadata.recovery.rebootstrap.trigger.ms", 300_000, "When to do so."),
    _list("config.providers", (), "Names of config providers."),
)

#: Of a producer.
PRODUCER: Final = (
    _COMMON
    | ConfigDef.of(
        _changed(_COMMON.settings["receive.buffer.bytes"], 32_768),
        _long("buffer.memory", 33_554_432, "Bytes of records that wait to be sent.", _HIGH),
        _int("retries", _RETRIES, "How often a failed send is tried again.", _HIGH, AtLeast(0, _RETRIES)),
        _text("acks", "all", "Whose acknowledgement is waited for.", _LOW, OneOf(("all", "-1", "0", "1"))),
        _text(
            "compression.type",
            "none",
            "Codec of batches.",
            _HIGH,
            OneOf(("none", "gzip", "snappy", "lz4", "zstd")),
        ),
        _int("compression.gzip.level", -1, "How hard gzip tries; -1 for its default.", _MEDIUM, GzipLevel()),
        _int("compression.lz4.level", 9, "How hard lz4 tries.", _MEDIUM, AtLeast(1, 17)),
        _int("compression.zstd.level", 3, "How hard zstd tries.", _MEDIUM, AtLeast(-131_072, 22)),
        _int("batch.size", 16_384, "Bytes of a batch."),
        _flag("partitioner.adaptive.partitioning.enable", True, "Send more to partitions whose leaders are faster."),
        _long("partitioner.availability.timeout.ms", 0, "When a slow partition is avoided; 0 for never."),
        _flag("partitioner.ignore.keys", False, "Choose partitions without looking at keys.", _MEDIUM),
        _long("linger.ms", 5, "How long a batch waits for more records.", _MEDIUM),
        _int("delivery.timeout.ms", 120_000, "How long a record may take to be acknowledged."),
        _int("max.request.size", 1_048_576, "Bytes of a request."),
        _long("max.block.ms", 60_000, "How long a send may wait for room or metadata.", _MEDIUM),
        _long("metadata.max.idle.ms", 300_000, "When metadata of an unused topic is forgotten.", _LOW, AtLeast(5000)),
        _int("max.in.flight.requests.per.connection", 5, "Unanswered requests.", _LOW, _POSITIVE),
        _class("key.serializer", REQUIRED, "Java class that writes keys.", _HIGH),
        _class("value.serializer", REQUIRED, "Java class that writes values.", _HIGH),
        _class("partitioner.class", None, "Java class that chooses partitions.", _MEDIUM),
        _list("interceptor.classes", (), "Java classes that see every record."),
        _flag("enable.idempotence", True, "Let brokers drop what is sent twice."),
        _int("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS, "When an open transaction is aborted.", _LOW, None),
        _text("transactional.id", None, "Name that transactions go by.", _LOW, NonEmpty()),
        _flag("transaction.two.phase.commit.enable", False, "Leave the end of transactions to another system."),
    )
    | SECURITY
)

#: Of a consumer.
CONSUMER: Final = (
    _COMMON
    | ConfigDef.of(
        _changed(_COMMON.settings["client.id"], "", _LOW),
        _text("group.id", None, "Name of the consumer group.", _HIGH),
        _text("group.instance.id", None, "Name of a static member.", _MEDIUM, NonEmpty()),
        _int("session.timeout.ms", 45_000, "When a silent member is put out of its group.", _HIGH, None),
        _int("heartbeat.interval.ms", 3000, "How often a member says that it is there.", _HIGH, None),
        _list(
            "partition.assignment.strategy",
            (
                "org.apache.kafka.clients.consumer.RangeAssignor",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            ),
            "Java classes that spread partitions over members.",
            _MEDIUM,
        ),
        _flag("enable.auto.commit", True, "Commit offsets now and then.", _MEDIUM),
        _int("auto.commit.interval.ms", 5000, "How often.", _LOW),
        _text("client.rack", "", "Rack in which to read, where a replica is in it."),
        _int("max.partition.fetch.bytes", 1_048_576, "Most bytes of one partition in a fetch.", _HIGH),
        _int("fetch.min.bytes", 1, "What a fetch waits for.", _HIGH),
        _int("fetch.max.bytes", 52_428_800, "Most bytes of one fetch."),
        _int("fetch.max.wait.ms", 500, "How long a fetch waits for records.", _LOW),
        _text("auto.offset.reset", "latest", "Where a partition without a position begins.", _MEDIUM),
        _flag("check.crcs", True, "Check the sums of batches."),
        _class("key.deserializer", REQUIRED, "Java class that reads keys.", _HIGH),
        _class("value.deserializer", REQUIRED, "Java class that reads values.", _HIGH),
        _int("default.api.timeout.ms", 60_000, "How long calls may take."),
        _int("max.poll.records", 500, "Records of one poll.", _MEDIUM, _POSITIVE),
        _int("max.poll.interval.ms", 300_000, "Longest time between polls.", _MEDIUM, _POSITIVE),
        _list("interceptor.classes", (), "Java classes that see every record."),
        _flag("exclude.internal.topics", True, "Leave internal topics out of patterns.", _MEDIUM),
        _text(
            "isolation.level",
            "read_uncommitted",
            "Whether aborted transactions are left out.",
            _MEDIUM,
            OneOf(("read_committed", "read_uncommitted")),
        ),
        _flag("allow.auto.create.topics", True, "Let brokers make topics that are asked for.", _MEDIUM),
        _text(
            "group.protocol",
            "classic",
            "Protocol of the group.",
            _HIGH,
            OneOf(("CONSUMER", "CLASSIC"), any_case=True),
        ),
        _text("group.remote.assignor", None, "Assignor of the brokers.", _MEDIUM),
    )
    | SECURITY
)

#: Of an admin client.
ADMIN: Final = (
    _COMMON
    | ConfigDef.of(
        _changed(replace(_COMMON.settings["bootstrap.servers"], check=ValidList()), ()),
        _list("bootstrap.controllers", (), "Controllers to begin with, instead of brokers.", _HIGH),
        _changed(_COMMON.settings["connections.max.idle.ms"], 300_000),
        _changed(_COMMON.settings["enable.metrics.push"], False),
        _int("retries", _RETRIES, "How often a failed call is tried again.", _LOW, AtLeast(0, _RETRIES)),
        _int("default.api.timeout.ms", 60_000, "How long calls may take."),
    )
    | SECURITY
)

#: By the word before ``.override.``.
CLIENTS: Final[Mapping[str, ConfigDef]] = {"producer": PRODUCER, "consumer": CONSUMER, "admin": ADMIN}


_KEY: Final = "connector.client.config.override.policy"
_JAVA: Final = "org.apache.kafka.connect.connector.policy."
_SUFFIX: Final = "ConnectorClientConfigOverridePolicy"
_PRINCIPAL: Final = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})


@dataclass(frozen=True, slots=True)
class OverridePolicy:
    """A policy by name; ``allows`` is asked with a client's key, without ``producer.override.`` and its like."""

    name: str
    allows: Callable[[str], bool]

    def objection(self, key: str) -> str | None:
        """Java's sentence on a key that may not be overridden, None where it may."""
        if self.allows(key):
            return None
        return f"The '{self.name}' policy does not allow '{key}' to be overridden in the connector configuration."


_NONE: Final[Mapping[str, OverridePolicy]] = {}


def make_policy(
    name: str, allowlist: Sequence[str] = (), others: Mapping[str, OverridePolicy] = _NONE
) -> OverridePolicy:
    """The policy of that name: short (``None``), simple or full class name of Java's, or one of ``others``.

    Raises:
        ConfigError: There is none.
    """
    if name in others:
        return others[name]
    match name.removeprefix(_JAVA).removesuffix(_SUFFIX):
        case "All":
            return OverridePolicy("All", lambda key: True)
        case "None":
            return OverridePolicy("None", lambda key: False)
        case "Principal":
            return OverridePolicy("Principal", _PRINCIPAL.__contains__)
        case "Allowlist":
            return OverridePolicy("Allowlist", frozenset(allowlist).__contains__)
    raise ConfigError(
        f"{_KEY} is '{name}'; it can be {', '.join(('All', 'None', 'Principal', 'Allowlist', *others))}", _KEY
    )


BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
#: What a cluster's settings hand on to every client of it (Kafka's ``MirrorClientConfig.CLIENT_CONFIG_DEF``).
CONNECTION_KEYS: Final = (BOOTSTRAP_SERVERS, *SECURITY.settings)

#: The security keys that :func:`connect.kafka.security.connection_settings.connection_settings` heeds.
SUPPORTED_SECURITY: Final = frozenset(
    name
    for name in SECURITY.settings
    if name.startswith(("ssl.truststore.", "ssl.keystore."))
    or name
    in (
        "security.protocol",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.kerberos.service.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
    )
)


CONSUMER_KEYS: Final = frozenset(CONSUMER.settings) - frozenset(CONNECTION_KEYS)
PRODUCER_KEYS: Final = frozenset(PRODUCER.settings) - frozenset(CONNECTION_KEYS)
ADMIN_KEYS: Final = frozenset(ADMIN.settings) - frozenset(CONNECTION_KEYS)
