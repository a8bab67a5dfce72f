"""Parse MirrorMaker 1's command line and its two kinds of files into typed settings, and translate the keys of its
clients before Kafka 0.9 and of its own files. A test compares them with ``docs/mirrormaker-1.md``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from connect.core.config import client_settings
from connect.core.config.client_settings import BOOTSTRAP_SERVERS, SUPPORTED_SECURITY
from connect.core.config.config_def import AtLeast, ConfigDef, OneOf, Values
from connect.core.config.properties import ClientProperties, Properties
from connect.core.config.validation import non_empty
from connect.core.config.worker_config import meant
from connect.core.errors import ConfigError
from connect.kafka.group_protocol import CONSUMER as CONSUMER_PROTOCOL
from connect.kafka.group_protocol import GroupSettings
from connect.kafka.log.offsets import EARLIEST, LATEST
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connectors.config.connector_configs import compression_of
from connectors.dataplane.by_key_producer import HandlerPlan
from connectors.formats.types import Compression, FlowName
from connectors.mirror_maker_1.consumer_group import RANGE, STRATEGIES
from connectors.mirror_maker_1.topics import TopicList

FileSide = Literal["consumer", "producer"]

#: Numbers as of 0.8.2 (Kafka's ``CompressionCodec``), which also read names in any case.
_CODECS: Final = {"0": "none", "1": "gzip", "2": "snappy", "3": "lz4"}
#: Kafka 0.7 wrote brokers as ``id:host:port``.
_NUMBERED: Final = re.compile(r"^\d+:(?=[^:]+:\d+$)")
_RESETS: Final = {"smallest": "earliest", "largest": "latest"}


def _brokers(text: str) -> str:
    return ",".join(_NUMBERED.sub("", one.strip()) for one in text.split(",") if one.strip())


def _codec(text: str) -> str:
    name = text.strip().lower()
    return _CODECS.get(name, name)


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Old keys without effect; the page has what takes their place.
WITHOUT_EFFECT: Final[Mapping[FileSide, frozenset[str]]] = {
    "consumer": _keys(
        """
        zk.connect zookeeper.connect zk.connectiontimeout.ms zk.sessiontimeout.ms zk.synctime.ms
        zookeeper.connection.timeout.ms zookeeper.session.timeout.ms zookeeper.sync.time.ms consumer.id consumerid
        shallow.iterator.enable shallowiterator.enable mirror.topics.whitelist mirror.topics.blacklist
        mirror.consumer.numthreads num.consumer.fetchers auto.commit.enabled auto.commit.enable enable.auto.commit
        autocommit.enable autocommit.interval.ms auto.commit.interval.ms offsets.commit.max.retries
        offsets.channel.backoff.ms offsets.channel.socket.timeout.ms offsets.storage dual.commit.enabled
        consumer.timeout.ms socket.buffersize socket.receive.buffer.bytes socket.timeout.ms queuedchunks.max
        queued.max.message.chunks rebalance.retries.max rebalance.max.retries rebalance.backoff.ms
        refresh.leader.backoff.ms backoff.increment.ms fetcher.backoff.ms key.deserializer value.deserializer
        max.poll.records interceptor.classes exclude.internal.topics
        """
    ),
    "producer": _keys(
        """
        zk.connect zookeeper.connect zk.read.num.retries compressed.topics producer.type acks request.required.acks
        enable.idempotence retries message.send.max.retries num.retries delivery.timeout.ms
        max.in.flight.requests.per.connection queue.time queue.size queue.buffering.max.ms queue.buffering.max.messages
        queue.enqueueTimeout.ms queue.enqueue.timeout.ms block.on.buffer.full buffer.memory max.block.ms
        batch.num.messages linger.ms max.message.size max.request.size buffer.size connect.timeout.ms socket.timeout.ms
        reconnect.interval reconnect.time.interval.ms partitioner.class serializer.class key.serializer.class
        key.serializer value.serializer event.handler callback.handler interceptor.classes event.handler.props
        callback.handler.props topic.metadata.refresh.interval.ms request.timeout.in.ms timeout.ms transactional.id
        """
    ),
}
#: Old keys whose value a present key takes, if that is not set, with the translation of the value.
RENAMED: Final[Mapping[FileSide, Mapping[str, tuple[str, Callable[[str], str]]]]] = {
    "consumer": {
        "groupid": ("group.id", str.strip),
        "autooffset.reset": ("auto.offset.reset", str.strip),
        "fetch.size": ("max.partition.fetch.bytes", str.strip),
        "fetch.message.max.bytes": ("max.partition.fetch.bytes", str.strip),
        "max.fetch.wait.ms": ("fetch.max.wait.ms", str.strip),
        "fetch.wait.max.ms": ("fetch.max.wait.ms", str.strip),
    },
    "producer": {
        "broker.list": ("bootstrap.servers", _brokers),
        "metadata.broker.list": ("bootstrap.servers", _brokers),
        "compression.codec": ("compression.type", _codec),
    },
}

#: How long a slice keeps writing without contact to its process.
SLICE_LEASE_MS: Final = 5_000
_FETCHING: Final[Mapping[str, str]] = {
    "fetch.max.bytes": "fetch_max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
}
#: Keys of a ``--consumer.config`` that affect a copy, in addition to those of the connection.
CONSUMER: Final = client_settings.CONSUMER.only(
    "client.id",
    "client.rack",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "metadata.max.age.ms",
    "isolation.level",
    "partition.assignment.strategy",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
) | ConfigDef.of(
    replace(client_settings.CONSUMER.settings["group.id"], check=non_empty),
    replace(client_settings.CONSUMER.settings["auto.offset.reset"], check=OneOf(("earliest", "latest"))),
    # No default, because the copy's own is better.
    *(
        replace(client_settings.CONSUMER.settings[key], default=None, check=AtLeast(0, nullable=True))
        for key in _FETCHING
    ),
)
#: Keys of a ``--producer.config`` that affect a copy.
PRODUCER: Final = client_settings.PRODUCER.only(
    "client.id", "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level"
) | ConfigDef.of(
    replace(client_settings.PRODUCER.settings["batch.size"], default=None, check=AtLeast(0, nullable=True))
)
_KNOWN: Final[Mapping[FileSide, ConfigDef]] = {
    "consumer": client_settings.CONSUMER,
    "producer": client_settings.PRODUCER,
}
#: Keys of both files.
_OF_CONNECTIONS: Final = SUPPORTED_SECURITY | {
    BOOTSTRAP_SERVERS,
    "request.timeout.ms",
    "connections.max.idle.ms",
    "send.buffer.bytes",
    "receive.buffer.bytes",
}
#: Keys that a copy uses, or that have their own sentence.
_USED_KEYS: Final[Mapping[FileSide, frozenset[str]]] = {
    "consumer": _OF_CONNECTIONS | CONSUMER.settings.keys() | {"group.instance.id", "group.protocol"},
    "producer": _OF_CONNECTIONS | PRODUCER.settings.keys(),
}
_SPARK: Final = "spark."
_PROVIDERS: Final = "config.providers"
#: Takes a sentence for the log.
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MirrorConsumerSettings:
    """One ``--consumer.config``. ``name`` is the cluster's name in messages; ``fetching`` are fields of a slice's
    settings; ``look_s`` is how often topics are looked up."""

    name: str
    connection: ConnectionSettings
    group: GroupSettings
    strategies: tuple[str, ...]
    reset_to: int
    read_committed: bool
    look_s: float
    rack: str = ""
    fetching: Mapping[str, int] = field(default_factory=dict)

    @property
    def flow_name(self) -> FlowName:
        return FlowName(self.name, "target")

    @property
    def flow(self) -> str:
        return str(self.flow_name)

    def group_settings(self, client_id: str) -> GroupSettings:
        return replace(self.group, client_id=client_id)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line without its files. ``takes`` says whether a topic is copied."""

    takes: TopicList
    streams: int = 1
    commit_interval_ms: int = 1_000
    aborts: bool = True
    handler: HandlerPlan | None = None
    listener: Any = None


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The settings of one process. ``spark`` has the ``spark.*`` keys of the producer's file, ``hidden`` the
    environment variables that files refer to."""

    sources: tuple[MirrorConsumerSettings, ...]
    target: ConnectionSettings
    compression: Compression
    batch_bytes: int | None
    options: Options
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Client:
    """One file, and its values with present keys. ``origins``: the file's old keys, by the present keys that have their
    values."""

    file: ClientProperties
    props: Mapping[str, str] = field(repr=False)
    origins: Mapping[str, str]

    def error(self, error: ConfigError) -> ConfigError:
        """Return the error with the key as in the file, and its line."""
        key = error.key or ""
        written = self.origins.get(key, key)
        return self.file.error(error.message.replace(key, written, 1), written)


def mirror_settings(
    consumers: Sequence[Properties], producer: Properties, options: Options, report: Report
) -> MirrorSettings:
    """Parse these files, with references to config providers resolved. ``report`` gets a sentence for each key without
    effect, even if the settings are rejected afterwards. Raises ConfigError if a value is missing or invalid; the error
    has key, file and line."""
    read, written = [_client("consumer", file, report) for file in consumers], _client("producer", producer, report)
    names = ["source"] if len(consumers) == 1 else [f"source{number}" for number in range(1, len(consumers) + 1)]
    sources = tuple(_source(name, client, report) for name, client in zip(names, read, strict=True))
    values = _parsed(PRODUCER, written)
    client_id = values.string("client.id") or "kafka-mirror-maker"
    return MirrorSettings(
        sources,
        _connection(written, client_id, "the target"),
        compression_of(values),
        None if values["batch.size"] is None else values.integer("batch.size"),
        options,
        {key: value for key, value in written.props.items() if key.startswith(_SPARK)},
        frozenset().union(*(client.file.secret_variables for client in (*read, written))),
    )


def _lease_ms(session_ms: int, heartbeat_ms: int) -> int:
    """Return a lease such that, if the session is long enough, the slice renewed last ends with the session, but a
    slightly late heartbeat costs nothing."""
    return min(session_ms, max(session_ms - SLICE_LEASE_MS, session_ms // 2, heartbeat_ms * 3 // 2))


def _client(side: FileSide, raw: Properties, report: Report) -> _Client:
    file = ClientProperties(raw)
    props, origins = dict(file), dict[str, str]()
    for key, value in file.items():
        if key in WITHOUT_EFFECT[side]:
            why = "has no effect here; docs/mirrormaker-1.md says what takes its place"
        elif key in RENAMED[side]:
            present, translate = RENAMED[side][key]
            why = f"is now {present}, which takes its value"
            if not file.get(present, "").strip():
                props[present] = translate(value)
                origins[present] = key
        elif key in _USED_KEYS[side] or key.startswith((_SPARK, _PROVIDERS)):
            continue
        elif key in _KNOWN[side].settings:
            why = "is not supported here and has no effect"
        else:
            why = f"is not a key of a {side} and has no effect{meant(key, _KNOWN[side].settings)}"
        report(f"{file.file}: {key}: {why}")
    if (reset := props.get("auto.offset.reset", "").strip().lower()) in _RESETS:
        props["auto.offset.reset"] = _RESETS[reset]
    return _Client(file, props, origins)


def _source(name: str, client: _Client, report: Report) -> MirrorConsumerSettings:
    props, file = client.props, client.file
    values = _parsed(CONSUMER, client)
    if not values["group.id"]:
        raise file.error("group.id is missing. Set it; instances with the same group.id share the work", "group.id")
    session_ms = values.integer("session.timeout.ms")
    if props.get("group.instance.id", "").strip():
        report(f"{file.file}: group.instance.id has no effect: members leave and join in seconds")
    if props.get("group.protocol", "").strip().lower() == "consumer":
        report(f"{file.file}: group.protocol has no effect: the group uses the classic protocol")
    return MirrorConsumerSettings(
        name=name,
        connection=_connection(client, values.string("client.id"), f"the source of {file.file}"),
        group=GroupSettings(
            group_id=values.string("group.id"),
            client_id=values.string("client.id") or values.string("group.id"),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=values.integer("max.poll.interval.ms"),
            heartbeat_interval_ms=values.integer("heartbeat.interval.ms"),
            lease_ms=_lease_ms(session_ms, values.integer("heartbeat.interval.ms")),
            retry_backoff_ms=values.integer("retry.backoff.ms"),
            retry_backoff_max_ms=values.integer("retry.backoff.max.ms"),
            protocol_type=CONSUMER_PROTOCOL,
        ),
        strategies=_strategies(values, file, report),
        reset_to=LATEST if values.string("auto.offset.reset") == "latest" else EARLIEST,
        read_committed=values.string("isolation.level") == "read_committed",
        look_s=values.integer("metadata.max.age.ms") / 1000,
        rack=values.string("client.rack"),
        fetching={name: values.integer(key) for key, name in _FETCHING.items() if values[key] is not None},
    )


def _strategies(values: Values, file: Properties, report: Report) -> tuple[str, ...]:
    """Return supported strategies, the preferred first; ``range`` if none is left, because all of Java's have it."""
    names = values.strings("partition.assignment.strategy")
    found = tuple(dict.fromkeys(STRATEGIES[name] for name in names if name in STRATEGIES))
    others = [name.rpartition(".")[2] for name in names if name not in STRATEGIES]
    if others and "partition.assignment.strategy" in file:
        report(
            f"{file.file}: partition.assignment.strategy: {', '.join(others)} is not supported here, so members use "
            f"{' or '.join(found or (RANGE,))}"
        )
    return found or (RANGE,)


def _parsed(config: ConfigDef, client: _Client) -> Values:
    try:
        return config.parse(client.props)
    except ConfigError as error:
        raise client.error(error) from None


def _connection(client: _Client, client_id: str, where: str) -> ConnectionSettings:
    if not client.props.get("bootstrap.servers", "").strip():
        zookeeper = next((key for key in ("zookeeper.connect", "zk.connect") if key in client.file), "")
        instead = f" in place of {zookeeper}, because ZooKeeper is not used" if zookeeper else ""
        message = f"bootstrap.servers is missing. Set it to brokers of {where}{instead}"
        raise client.file.error(message, zookeeper or "bootstrap.servers")
    try:
        return connection_settings(client.props, client_id=client_id, where=where)
    except ConfigError as error:
        raise client.error(error) from None
