"""Parse MirrorMaker 1's command line and its two kinds of files into typed settings, and translate old keys.

The old keys are those of its clients before Kafka 0.9 and of its own files. ``docs/mirrormaker-1.md`` shows their
table; a test compares them. Of the machine only key stores are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from connect.core.config import client_settings
from connect.core.config.client_settings import BOOTSTRAP_SERVERS, SUPPORTED_SECURITY
from connect.core.config.config_def import AtLeast, ConfigDef, OneOf, Values
from connect.core.config.properties import ClientProperties, Properties
from connect.core.config.validation import NonEmpty
from connect.core.errors import ConfigError
from connect.kafka.group_protocol import CONSUMER as CONSUMER_PROTOCOL
from connect.kafka.group_protocol import GroupSettings
from connect.kafka.log.offsets import EARLIEST, LATEST
from connect.kafka.security.connection_settings import ConnectionSettings, connection_settings
from connect.wire.batch import CODEC_NAMES
from connectors.dataplane.by_key_producer import HandlerPlan
from connectors.formats.types import Compression, FlowName
from connectors.mirror_maker_1.assignors import RANGE, STRATEGIES
from connectors.mirror_maker_1.topics import TopicList

FileSide = Literal["consumer", "producer"]

#: Numbers as of 0.8.2 (Kafka's ``CompressionCodec``), which also read names in any case.
_CODECS: Final = {"0": "none", "1": "gzip", "2": "snappy", "3": "lz4"}
#: Kafka 0.7 wrote brokers as ``id:host:port``.
_NUMBERED: Final = re.compile(r"^\d+:(?=[^:]+:\d+$)")
_RESETS: Final = {"smallest": "earliest", "largest": "latest"}


@dataclass(frozen=True, slots=True)
class OldKey:
    """``instead``: one sentence for people. ``becomes``: the key of today that takes its value over, where that is not
    set, translated by ``value``."""

    name: str
    side: FileSide
    instead: str
    becomes: str = ""
    value: Callable[[str], str] = str.strip


def _brokers(text: str) -> str:
    return ",".join(_NUMBERED.sub("", one.strip()) for one in text.split(",") if one.strip())


def _codec(text: str) -> str:
    name = text.strip().lower()
    return _CODECS.get(name, name)


_NO_ZOOKEEPER: Final = "Brokers are asked directly, and no ZooKeeper: set bootstrap.servers to brokers of this cluster."
_NO_ZOOKEEPER_TIMES: Final = (
    "There is no ZooKeeper session: session.timeout.ms says after which silence the group misses a member."
)
_IN_KAFKA: Final = (
    "Positions are stored in Kafka, in the consumer's own group; heliograph takeover takes over those of a group."
)
_COMMITS: Final = (
    "Positions are stored by the copy itself, every --offset.commit.interval.ms and only for what the target has "
    "acknowledged."
)
_SHALLOW: Final = (
    "Batches are always copied as they are where that is correct, and opened where it is not; there is nothing to set."
)
_BY_COMMAND: Final = "The list of topics is --include or --exclude of the command line."
_ALWAYS_ALL: Final = (
    "Every batch is acknowledged by all in-sync replicas before it counts as copied, whatever this says."
)
_NEVER_GIVEN_UP: Final = (
    "What failed is tried again, in order and without an end, until the target has it or refuses it for good; "
    "--abort.on.send.failure says what happens then."
)
_NO_QUEUE: Final = (
    "There is no queue between consumer and producer: reading waits while 48 MiB of a slice are not acknowledged; "
    "by key each partition reads about 2 MiB ahead, compressed as at the source."
)
_NO_TIMEOUT: Final = "A copy waits for records as long as it takes."
_BATCHES: Final = "Batches keep the size that their producer gave them, or are merged up to batch.size."
_SOCKETS: Final = "Socket buffers grow with rate and distance unless send.buffer.bytes or receive.buffer.bytes is set."
_HANDLER: Final = "Use --message.handler, which sees each record before it is sent."
_BYTES: Final = "Keys and values are copied as the bytes that they are."
_AGAIN: Final = "A leader that has moved is asked for at once, and again at short distances."
_COORDINATOR: Final = "The group's coordinator is looked for until it answers."
_BALANCE: Final = "The group's coordinator leads rebalances, and joining is tried again until it works."

#: By what is said of them: keys without effect.
_WITHOUT_EFFECT: Final[Mapping[FileSide, Mapping[str, str]]] = {
    "consumer": {
        _NO_ZOOKEEPER: "zk.connect zookeeper.connect",
        _NO_ZOOKEEPER_TIMES: (
            "zk.connectiontimeout.ms zk.sessiontimeout.ms zk.synctime.ms "
            "zookeeper.connection.timeout.ms zookeeper.session.timeout.ms zookeeper.sync.time.ms"
        ),
        "The group's coordinator names its members; client.id shows in the name.": "consumer.id consumerid",
        _SHALLOW: "shallow.iterator.enable shallowiterator.enable",
        _BY_COMMAND: "mirror.topics.whitelist mirror.topics.blacklist",
        "It is --num.streams of the command line.": "mirror.consumer.numthreads",
        "Each stream fetches by itself; --num.streams says how many there are.": "num.consumer.fetchers",
        _COMMITS: (
            "auto.commit.enabled auto.commit.enable enable.auto.commit autocommit.enable "
            "autocommit.interval.ms auto.commit.interval.ms offsets.commit.max.retries"
        ),
        _COORDINATOR: "offsets.channel.backoff.ms offsets.channel.socket.timeout.ms",
        _IN_KAFKA: "offsets.storage dual.commit.enabled",
        _NO_TIMEOUT: "consumer.timeout.ms",
        _SOCKETS: ("socket.buffersize socket.receive.buffer.bytes socket.timeout.ms"),
        _NO_QUEUE: "queuedchunks.max queued.max.message.chunks",
        _BALANCE: "rebalance.retries.max rebalance.max.retries rebalance.backoff.ms",
        _AGAIN: "refresh.leader.backoff.ms backoff.increment.ms fetcher.backoff.ms",
        _BYTES: "key.deserializer value.deserializer",
        "Every message is taken as it comes.": "max.poll.records",
        _HANDLER: "interceptor.classes",
        "Topics are never copied whose names begin with __ or end in .internal or -internal.": (
            "exclude.internal.topics"
        ),
    },
    "producer": {
        _NO_ZOOKEEPER: "zk.connect zookeeper.connect zk.read.num.retries",
        "Topics are compressed by compression.type, all alike.": "compressed.topics",
        (
            "Batches are always sent without waiting for each answer, many at a time and in order; sync and "
            "async are one."
        ): "producer.type",
        _ALWAYS_ALL: "acks request.required.acks enable.idempotence",
        _NEVER_GIVEN_UP: "retries message.send.max.retries num.retries delivery.timeout.ms",
        (
            "Order is kept by sequence numbers with many requests in flight, so one at a time is not needed for it."
        ): "max.in.flight.requests.per.connection",
        _NO_QUEUE: (
            "queue.time queue.size queue.buffering.max.ms queue.buffering.max.messages "
            "queue.enqueueTimeout.ms queue.enqueue.timeout.ms block.on.buffer.full buffer.memory "
            "max.block.ms"
        ),
        _BATCHES: "batch.num.messages linger.ms max.message.size max.request.size",
        _SOCKETS: "buffer.size connect.timeout.ms socket.timeout.ms",
        "Connections are opened anew where they are lost, and not after a number of requests.": (
            "reconnect.interval reconnect.time.interval.ms"
        ),
        (
            "A record keeps the partition that it has; where the target has another number, its key's hash says which."
        ): "partitioner.class",
        _BYTES: "serializer.class key.serializer.class key.serializer value.serializer",
        _HANDLER: "event.handler callback.handler interceptor.classes",
        "Use --message.handler.args, which the handler is made with.": "event.handler.props callback.handler.props",
        (
            "A leader that has moved is asked for at once; metadata.max.age.ms of the consumer is how often "
            "topics are looked for."
        ): "topic.metadata.refresh.interval.ms",
        "A request is given as long as request.timeout.ms says.": "request.timeout.in.ms timeout.ms",
        "The copy makes transactional ids of its own.": "transactional.id",
    },
}
#: Whose values keys of today take over, translated.
_RENAMED: Final[tuple[tuple[FileSide, str, str, Callable[[str], str]], ...]] = (
    ("consumer", "groupid", "group.id", str.strip),
    ("consumer", "autooffset.reset", "auto.offset.reset", str.strip),
    ("consumer", "fetch.size", "max.partition.fetch.bytes", str.strip),
    ("consumer", "fetch.message.max.bytes", "max.partition.fetch.bytes", str.strip),
    ("consumer", "max.fetch.wait.ms", "fetch.max.wait.ms", str.strip),
    ("consumer", "fetch.wait.max.ms", "fetch.max.wait.ms", str.strip),
    ("producer", "broker.list", "bootstrap.servers", _brokers),
    ("producer", "metadata.broker.list", "bootstrap.servers", _brokers),
    ("producer", "compression.codec", "compression.type", _codec),
)
OLD_KEYS: Final[tuple[OldKey, ...]] = (
    *(
        OldKey(name, side, instead)
        for side, sentences in _WITHOUT_EFFECT.items()
        for instead, names in sentences.items()
        for name in names.split()
    ),
    *(OldKey(name, side, f"It is {new} today, which takes its value.", new, to) for side, name, new, to in _RENAMED),
)
_BY_NAME: Final[Mapping[tuple[str, str], OldKey]] = {(one.side, one.name): one for one in OLD_KEYS}


def old_key(side: FileSide, name: str) -> OldKey | None:
    """What is known of a key that is no client's of today, or without effect here."""
    return _BY_NAME.get((side, name))


@dataclass(frozen=True, slots=True)
class TranslatedConfig:
    """A file's ``props`` under the keys of today. ``said``: of each older key its sentence. ``origins``: the older key
    whose value one of today has, by the latter."""

    props: Mapping[str, str]
    said: tuple[str, ...]
    origins: Mapping[str, str]


def translated(side: FileSide, props: Mapping[str, str]) -> TranslatedConfig:
    """What a file says today."""
    found, said, origins = dict(props), [], {}
    for name, value in props.items():
        old = old_key(side, name)
        if old is None:
            continue
        said.append(f"{name}: {old.instead}")
        if old.becomes and not props.get(old.becomes, "").strip():
            found[old.becomes] = old.value(value)
            origins[old.becomes] = name
    if (reset := found.get("auto.offset.reset", "").strip().lower()) in _RESETS:
        found["auto.offset.reset"] = _RESETS[reset]
    return TranslatedConfig(found, tuple(said), origins)


#: How long a slice goes on writing without a word from its process.
SLICE_LEASE_MS: Final = 5_000
_FETCHING: Final[Mapping[str, str]] = {
    "fetch.max.bytes": "fetch_max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
}
#: The keys of a ``--consumer.config`` that mean something to a copy, beside those of the connection.
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
    replace(client_settings.CONSUMER.settings["group.id"], check=NonEmpty()),
    replace(client_settings.CONSUMER.settings["auto.offset.reset"], check=OneOf(("earliest", "latest"))),
    # Without a default: the copy's own is better.
    *(
        replace(client_settings.CONSUMER.settings[key], default=None, check=AtLeast(0, nullable=True))
        for key in _FETCHING
    ),
)
#: The same of a ``--producer.config``.
PRODUCER: Final = client_settings.PRODUCER.only(
    "client.id", "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level"
) | ConfigDef.of(
    replace(client_settings.PRODUCER.settings["batch.size"], default=None, check=AtLeast(0, nullable=True)),
)
_KNOWN: Final[Mapping[FileSide, ConfigDef]] = {
    "consumer": client_settings.CONSUMER,
    "producer": client_settings.PRODUCER,
}
#: Of both files.
_OF_CONNECTIONS: Final = SUPPORTED_SECURITY | {
    BOOTSTRAP_SERVERS,
    "request.timeout.ms",
    "connections.max.idle.ms",
    "send.buffer.bytes",
    "receive.buffer.bytes",
}
#: What a copy heeds, or has a sentence of its own for.
_HEEDED: Final[Mapping[FileSide, frozenset[str]]] = {
    "consumer": _OF_CONNECTIONS | CONSUMER.settings.keys() | {"group.instance.id", "group.protocol"},
    "producer": _OF_CONNECTIONS | PRODUCER.settings.keys(),
}
_SPARK: Final = "spark."
_PROVIDERS: Final = "config.providers"
#: Where a sentence for the log goes.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MirrorConsumerSettings:
    """One ``--consumer.config``. ``name`` is what messages call the cluster; ``fetching`` are fields of a slice's
    settings; ``look_s`` is how often topics are looked for."""

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
        """Of one member."""
        return replace(self.group, client_id=client_id)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside files. ``takes`` says whether a topic is copied."""

    takes: TopicList
    streams: int = 1
    commit_interval_ms: int = 1_000
    aborts: bool = True
    handler: HandlerPlan | None = None
    listener: Any = None


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """All of one process. ``spark`` has the ``spark.*`` keys of the producer's file, ``hidden`` the environment
    variables that files refer to."""

    sources: tuple[MirrorConsumerSettings, ...]
    target: ConnectionSettings
    compression: Compression
    batch_bytes: int | None
    options: Options
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Client:
    """One file, and what it says under the keys of today. ``origins``: older keys of the file, by those of today that
    have their values."""

    file: ClientProperties
    props: Mapping[str, str]
    origins: Mapping[str, str]

    def error(self, error: ConfigError) -> ConfigError:
        """With the key as the file has it, and its line."""
        key = error.key or ""
        written = self.origins.get(key, key)
        return self.file.error(error.message.replace(key, written, 1), written)


def mirror_settings(
    consumers: Sequence[Properties], producer: Properties, options: Options, tell: Tell
) -> MirrorSettings:
    """The settings in these files, references to config providers resolved. ``tell`` hears what keys do not do, also
    where the settings are refused then.

    Raises:
        ConfigError: A value is missing or refused; key, file and line are named.
        SecurityError: A key store cannot be used.
    """
    read, written = [_client("consumer", file, tell) for file in consumers], _client("producer", producer, tell)
    names = ["source"] if len(consumers) == 1 else [f"source{number}" for number in range(1, len(consumers) + 1)]
    sources = tuple(_source(name, client, tell) for name, client in zip(names, read, strict=True))
    values = _parsed(PRODUCER, written)
    client_id = values.string("client.id") or "kafka-mirror-maker"
    return MirrorSettings(
        sources,
        _connection(written, client_id, "the target"),
        _compression(values),
        None if values["batch.size"] is None else values.integer("batch.size"),
        options,
        {key: value for key, value in written.props.items() if key.startswith(_SPARK)},
        frozenset().union(*(client.file.secret_variables for client in (*read, written))),
    )


def _lease_ms(session_ms: int, heartbeat_ms: int) -> int:
    """Where the session is long enough, a slice whose lease was renewed last has ended with it; but a heartbeat that is
    a little late costs nothing."""
    return min(session_ms, max(session_ms - SLICE_LEASE_MS, session_ms // 2, heartbeat_ms * 3 // 2))


def _client(side: FileSide, raw: Properties, tell: Tell) -> _Client:
    file = ClientProperties(raw)
    today = translated(side, file)
    for sentence in today.said:
        tell(f"{file.file}: {sentence}")
    for key in file:
        if key in _HEEDED[side] or old_key(side, key) is not None or key.startswith((_SPARK, _PROVIDERS)):
            continue
        why = "is not supported here" if key in _KNOWN[side].settings else f"is no key of a {side}"
        tell(f"{file.file}: {key}: {why} and has no effect")
    return _Client(file, today.props, today.origins)


def _source(name: str, client: _Client, tell: Tell) -> MirrorConsumerSettings:
    props, file = client.props, client.file
    values = _parsed(CONSUMER, client)
    if not values["group.id"]:
        raise file.error("group.id is missing: instances of one group.id share the work", "group.id")
    session_ms = values.integer("session.timeout.ms")
    if props.get("group.instance.id", "").strip():
        tell(f"{file.file}: group.instance.id: members have no fixed names here; they leave and join in seconds")
    if props.get("group.protocol", "").strip().lower() == "consumer":
        tell(f"{file.file}: group.protocol: the group's protocol is the classic one here")
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
        strategies=_strategies(values, file, tell),
        reset_to=LATEST if values.string("auto.offset.reset") == "latest" else EARLIEST,
        read_committed=values.string("isolation.level") == "read_committed",
        look_s=values.integer("metadata.max.age.ms") / 1000,
        rack=values.string("client.rack"),
        fetching={name: values.integer(key) for key, name in _FETCHING.items() if values[key] is not None},
    )


def _strategies(values: Values, file: Properties, tell: Tell) -> tuple[str, ...]:
    """Names of what we speak, the preferred first; ``range`` where nothing else is left, as all of Java's have it."""
    names = values.strings("partition.assignment.strategy")
    found = tuple(dict.fromkeys(STRATEGIES[name] for name in names if name in STRATEGIES))
    others = [name.rpartition(".")[2] for name in names if name not in STRATEGIES]
    if others and "partition.assignment.strategy" in file:
        tell(
            f"{file.file}: partition.assignment.strategy: {', '.join(others)} is not spoken here, so members agree on "
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
        instead = f" in place of {zookeeper}: there is no ZooKeeper to ask" if zookeeper else ""
        message = f"bootstrap.servers is missing: set it to brokers of {where}{instead}"
        raise client.file.error(message, zookeeper or "bootstrap.servers")
    try:
        return connection_settings(client.props, client_id=client_id, where=where)
    except ConfigError as error:
        raise client.error(error) from None


def _compression(values: Values) -> Compression:
    name = values.string("compression.type")
    level = f"compression.{name}.level"
    return Compression(CODEC_NAMES.index(name), values.integer(level) if level in PRODUCER.settings else None)
