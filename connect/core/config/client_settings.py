"""Declares the configs of Kafka's clients, and the policies for what connectors may override of them.

* Names and defaults are those of Kafka 4.3 (``ProducerConfig``, ``ConsumerConfig``, ``AdminClientConfig``). The effect
  of a config here is documented at the code that uses it, because a worker's clients are not Java's.
* The override policies are those of KIP-458 (``ConnectorClientConfigOverridePolicy``).
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
    Setting,
    ValidList,
    Value,
    class_name,
    flag,
    integer,
    long,
    strings,
    text,
)
from connect.core.config.security_settings import SECURITY
from connect.core.config.validation import gzip_level, non_empty
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
    return integer(name, default, doc, level, check)


def _long(name: str, default: int, doc: str, level: Importance = _LOW, check: Check | None = _NOT_NEGATIVE) -> Setting:
    return long(name, default, doc, level, check)


def _list(name: str, default: tuple[str, ...], doc: str, level: Importance = _LOW) -> Setting:
    return strings(name, default, doc, level, ValidList())


def changed(setting: Setting, default: Value, level: Importance | None = None) -> Setting:
    return replace(setting, default=default, importance=setting.importance if level is None else level)


#: The configs that all clients have.
COMMON: Final = ConfigDef.of(
    strings("bootstrap.servers", REQUIRED, "Addresses of brokers.", _HIGH, ValidList(may_be_empty=False)),
    text(
        "client.dns.lookup",
        "use_all_dns_ips",
        "How DNS names of brokers are resolved.",
        _MEDIUM,
        OneOf(("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")),
    ),
    text("client.id", "", "Name of the client in the brokers' logs and quotas.", _MEDIUM),
    _int("send.buffer.bytes", 131_072, "Send buffer of sockets; -1: the system's default.", _MEDIUM, _BUFFER),
    _int("receive.buffer.bytes", 65_536, "Receive buffer of sockets; -1: the system's default.", _MEDIUM, _BUFFER),
    _long("reconnect.backoff.ms", 50, "First wait before reconnecting."),
    _long("reconnect.backoff.max.ms", 1000, "Longest wait before reconnecting."),
    _long("retry.backoff.ms", 100, "First wait before a failed request is retried."),
    _long("retry.backoff.max.ms", 1000, "Longest wait before a failed request is retried."),
    flag("enable.metrics.push", True, "Send metrics of the client to brokers that subscribe to them."),
    _int("request.timeout.ms", 30_000, "Longest wait for the response to a request."),
    _long("metadata.max.age.ms", 300_000, "Age at which metadata is refreshed."),
    _long("metrics.sample.window.ms", 30_000, "Window of Java's metrics."),
    _int("metrics.num.samples", 2, "Samples of Java's metrics.", _LOW, _POSITIVE),
    text("metrics.recording.level", "INFO", "Level of Java's metrics.", check=OneOf(("INFO", "DEBUG", "TRACE"))),
    _list("metric.reporters", ("org.apache.kafka.common.metrics.JmxReporter",), "Java classes that report metrics."),
    _long("socket.connection.setup.timeout.ms", 10_000, "Timeout of the first attempt to connect.", _MEDIUM, None),
    _long("socket.connection.setup.timeout.max.ms", 30_000, "Longest timeout of an attempt to connect.", _MEDIUM, None),
    _long("connections.max.idle.ms", 540_000, "Idle time after which a connection is closed.", _MEDIUM, None),
    text("security.providers", None, "Java's security providers."),
    text(
        "metadata.recovery.strategy",
        "rebootstrap",
        "What a client does when no known broker is available.",
        check=OneOf(("REBOOTSTRAP", "NONE"), any_case=True),
    ),
    _long("metadata.recovery.rebootstrap.trigger.ms", 300_000, "Time without metadata before rebootstrap."),
    _list("config.providers", (), "Names of config providers."),
)

_OF_PRODUCER: Final = ConfigDef.of(
    changed(COMMON.settings["receive.buffer.bytes"], 32_768),
    _long("buffer.memory", 33_554_432, "Maximum bytes of records that wait to be sent.", _HIGH),
    _int("retries", _RETRIES, "Maximum retries of a failed send.", _HIGH, AtLeast(0, _RETRIES)),
    text("acks", "all", "Replicas that must acknowledge a record.", check=OneOf(("all", "-1", "0", "1"))),
    text(
        "compression.type",
        "none",
        "Compression codec of batches.",
        _HIGH,
        OneOf(("none", "gzip", "snappy", "lz4", "zstd")),
    ),
    _int("compression.gzip.level", -1, "Compression level of gzip; -1: the codec's default.", _MEDIUM, gzip_level),
    _int("compression.lz4.level", 9, "Compression level of lz4.", _MEDIUM, AtLeast(1, 17)),
    _int("compression.zstd.level", 3, "Compression level of zstd.", _MEDIUM, AtLeast(-131_072, 22)),
    _int("batch.size", 16_384, "Maximum bytes of a batch."),
    flag("partitioner.adaptive.partitioning.enable", True, "Send more records to partitions with faster leaders."),
    _long("partitioner.availability.timeout.ms", 0, "Time after which a slow partition is avoided; 0: never."),
    flag("partitioner.ignore.keys", False, "Choose the partition independently of the key.", _MEDIUM),
    _long("linger.ms", 5, "How long a batch waits for more records.", _MEDIUM),
    _int("delivery.timeout.ms", 120_000, "Longest time until a record is acknowledged."),
    _int("max.request.size", 1_048_576, "Maximum bytes of a request."),
    _long("max.block.ms", 60_000, "Longest time that a send blocks for buffer space or metadata.", _MEDIUM),
    _long("metadata.max.idle.ms", 300_000, "Time that metadata of an unused topic is kept.", _LOW, AtLeast(5000)),
    _int("max.in.flight.requests.per.connection", 5, "Maximum unacknowledged requests.", _LOW, _POSITIVE),
    class_name("key.serializer", REQUIRED, "Java class that serializes keys.", _HIGH),
    class_name("value.serializer", REQUIRED, "Java class that serializes values.", _HIGH),
    class_name("partitioner.class", None, "Java class that chooses partitions.", _MEDIUM),
    _list("interceptor.classes", (), "Java classes that intercept records."),
    flag("enable.idempotence", True, "Prevent duplicates when the producer retries."),
    _int("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS, "Longest duration of a transaction.", _LOW, None),
    text("transactional.id", None, "Transactional id of the producer.", check=non_empty),
    flag("transaction.two.phase.commit.enable", False, "Let an external coordinator end transactions (KIP-939)."),
)
#: The configs of a producer.
PRODUCER: Final = COMMON | _OF_PRODUCER | SECURITY

_OF_CONSUMER: Final = ConfigDef.of(
    changed(COMMON.settings["client.id"], "", _LOW),
    text("group.id", None, "Name of the consumer group.", _HIGH),
    text("group.instance.id", None, "Id of a static member of the group.", _MEDIUM, non_empty),
    _int("session.timeout.ms", 45_000, "Time without heartbeats before the group removes a member.", _HIGH, None),
    _int("heartbeat.interval.ms", 3000, "Interval of a member's heartbeats to the group coordinator.", _HIGH, None),
    _list(
        "partition.assignment.strategy",
        (
            "org.apache.kafka.clients.consumer.RangeAssignor",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        ),
        "Java classes that assign partitions to members.",
        _MEDIUM,
    ),
    flag("enable.auto.commit", True, "Commit offsets periodically.", _MEDIUM),
    _int("auto.commit.interval.ms", 5000, "Interval of automatic offset commits.", _LOW),
    text("client.rack", "", "Rack of the consumer; it fetches from a replica in this rack if there is one."),
    _int("max.partition.fetch.bytes", 1_048_576, "Maximum bytes of a partition in a fetch.", _HIGH),
    _int("fetch.min.bytes", 1, "Bytes that a broker collects before it answers a fetch.", _HIGH),
    _int("fetch.max.bytes", 52_428_800, "Maximum bytes of a fetch."),
    _int("fetch.max.wait.ms", 500, "Longest time that a broker waits for fetch.min.bytes.", _LOW),
    text("auto.offset.reset", "latest", "Start offset of partitions without a committed offset.", _MEDIUM),
    flag("check.crcs", True, "Verify the checksums of batches."),
    class_name("key.deserializer", REQUIRED, "Java class that deserializes keys.", _HIGH),
    class_name("value.deserializer", REQUIRED, "Java class that deserializes values.", _HIGH),
    _int("default.api.timeout.ms", 60_000, "Longest duration of API calls without their own timeout."),
    _int("max.poll.records", 500, "Maximum records of a poll.", _MEDIUM, _POSITIVE),
    _int("max.poll.interval.ms", 300_000, "Longest time between polls.", _MEDIUM, _POSITIVE),
    _list("interceptor.classes", (), "Java classes that intercept records."),
    flag("exclude.internal.topics", True, "Exclude internal topics from subscribed patterns.", _MEDIUM),
    text(
        "isolation.level",
        "read_uncommitted",
        "Whether to return records of aborted and open transactions.",
        _MEDIUM,
        OneOf(("read_committed", "read_uncommitted")),
    ),
    flag("allow.auto.create.topics", True, "Let brokers create topics that the consumer subscribes to.", _MEDIUM),
    text(
        "group.protocol",
        "classic",
        "Protocol of the consumer group.",
        _HIGH,
        OneOf(("CONSUMER", "CLASSIC"), any_case=True),
    ),
    text("group.remote.assignor", None, "Name of the server-side assignor.", _MEDIUM),
)
#: The configs of a consumer.
CONSUMER: Final = COMMON | _OF_CONSUMER | SECURITY

_OF_ADMIN: Final = ConfigDef.of(
    changed(replace(COMMON.settings["bootstrap.servers"], check=ValidList()), ()),
    _list("bootstrap.controllers", (), "Controllers for the first connection, instead of brokers.", _HIGH),
    changed(COMMON.settings["connections.max.idle.ms"], 300_000),
    changed(COMMON.settings["enable.metrics.push"], False),
    _int("retries", _RETRIES, "Maximum retries of a failed call.", _LOW, AtLeast(0, _RETRIES)),
    _int("default.api.timeout.ms", 60_000, "Longest duration of API calls without their own timeout."),
)
#: The configs of an admin client.
ADMIN: Final = COMMON | _OF_ADMIN | SECURITY

#: Client configs by the word before ``.override.``.
CLIENTS: Final[Mapping[str, ConfigDef]] = {"producer": PRODUCER, "consumer": CONSUMER, "admin": ADMIN}


_KEY: Final = "connector.client.config.override.policy"
_JAVA: Final = "org.apache.kafka.connect.connector.policy."
_SUFFIX: Final = "ConnectorClientConfigOverridePolicy"
_PRINCIPAL: Final = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})


@dataclass(frozen=True, slots=True)
class OverridePolicy:
    """A named policy; ``allows`` takes the key of a client, without a prefix such as ``producer.override.``."""

    name: str
    allows: Callable[[str], bool]

    def objection(self, key: str) -> str | None:
        """Return Java's message if ``key`` must not be overridden, else None."""
        if self.allows(key):
            return None
        return f"The '{self.name}' policy does not allow '{key}' to be overridden in the connector configuration."


_NONE: Final[Mapping[str, OverridePolicy]] = {}


def make_policy(
    name: str, allowlist: Sequence[str] = (), others: Mapping[str, OverridePolicy] = _NONE
) -> OverridePolicy:
    """Return the policy with a short name (``None``), Java's simple or full class name, or a name in ``others``. Raises
    ConfigError if there is no such policy."""
    if name in others:
        return others[name]
    policies: dict[str, Callable[[str], bool]] = {
        "All": lambda key: True,
        "None": lambda key: False,
        "Principal": _PRINCIPAL.__contains__,
        "Allowlist": frozenset(allowlist).__contains__,
    }
    short = name.removeprefix(_JAVA).removesuffix(_SUFFIX)
    if short not in policies:
        raise ConfigError(f"{_KEY} is '{name}'; it can be {', '.join((*policies, *others))}", _KEY)
    return OverridePolicy(short, policies[short])


BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
#: Keys of a cluster that apply to all its clients (Kafka's ``MirrorClientConfig.CLIENT_CONFIG_DEF``).
CONNECTION_KEYS: Final = (BOOTSTRAP_SERVERS, *SECURITY.settings)

#: The security keys that :func:`connect.kafka.security.connection_settings.connection_settings` uses.
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
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.jwt.retriever.class",
    )
)
#: Without these a client would trust others, or log in in another way, than its settings say: they are refused.
REFUSED_SECURITY: Final = frozenset(
    name
    for name in SECURITY.settings
    if name.startswith("sasl.oauthbearer.assertion.")
    or name in ("ssl.engine.factory.class", "ssl.provider", "sasl.client.callback.handler.class", "sasl.login.class")
)


CONSUMER_KEYS: Final = frozenset(CONSUMER.settings) - frozenset(CONNECTION_KEYS)
PRODUCER_KEYS: Final = frozenset(PRODUCER.settings) - frozenset(CONNECTION_KEYS)
ADMIN_KEYS: Final = frozenset(ADMIN.settings) - frozenset(CONNECTION_KEYS)

#: The keys of a connector's producer that are used, besides those of the connection.
PRODUCER_USED: Final = PRODUCER.only(
    "acks",
    "batch.size",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.request.size",
    "metadata.max.age.ms",
    "retry.backoff.ms",
    "transaction.timeout.ms",
)
#: Those that only a copy uses.
COMPRESSION_LEVELS: Final = ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level")
#: The keys of every client that are used, besides security.
OF_CONNECTIONS: Final = frozenset(
    {
        BOOTSTRAP_SERVERS,
        "client.id",
        "request.timeout.ms",
        "connections.max.idle.ms",
        "send.buffer.bytes",
        "receive.buffer.bytes",
    }
)
#: Security keys that are read by no client and refused by none.
IGNORED_SECURITY: Final = SECURITY.settings.keys() - SUPPORTED_SECURITY - REFUSED_SECURITY
