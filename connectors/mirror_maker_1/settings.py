"""What MirrorMaker 1 was told by its command line and its two kinds of files, typed. Reads key stores, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.core import client_defs
from connect.core.checks import NonEmpty
from connect.core.config import AtLeast, ConfigDef, OneOf, Values
from connect.core.errors import ConfigError
from connect.core.properties import Properties
from connect.core.providers import ClientProperties
from connect.kafka.group_requests import CONSUMER as CONSUMER_PROTOCOL
from connect.kafka.group_requests import GroupSettings
from connect.kafka.keys import BOOTSTRAP_SERVERS, SUPPORTED_SECURITY
from connect.kafka.offsets import EARLIEST, LATEST
from connect.kafka.settings import ConnectionSettings, connection_settings
from connect.wire.batch import CODEC_NAMES
from connectors.dataplane.plan import Compression
from connectors.flow_name import FlowName
from connectors.mirror_maker_1.assignors import RANGE, STRATEGIES
from connectors.mirror_maker_1.old_keys import Side, old_key, translated
from connectors.mirror_maker_1.topics import TopicList
from connectors.repartition.message_handler import HandlerPlan

#: How long a slice goes on writing without a word from its process.
SLICE_LEASE_MS: Final = 5_000
_FETCHING: Final[Mapping[str, str]] = {
    "fetch.max.bytes": "fetch_max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "fetch.min.bytes": "fetch_min_bytes",
}
#: The keys of a ``--consumer.config`` that mean something to a copy, beside those of the connection.
CONSUMER: Final = client_defs.CONSUMER.only(
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
    replace(client_defs.CONSUMER.settings["group.id"], check=NonEmpty()),
    replace(client_defs.CONSUMER.settings["auto.offset.reset"], check=OneOf(("earliest", "latest"))),
    # Without a default: the copy's own is better.
    *(replace(client_defs.CONSUMER.settings[key], default=None, check=AtLeast(0, nullable=True)) for key in _FETCHING),
)
#: The same of a ``--producer.config``.
PRODUCER: Final = client_defs.PRODUCER.only(
    "client.id", "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level"
) | ConfigDef.of(
    replace(client_defs.PRODUCER.settings["batch.size"], default=None, check=AtLeast(0, nullable=True)),
)
_KNOWN: Final[Mapping[Side, ConfigDef]] = {"consumer": client_defs.CONSUMER, "producer": client_defs.PRODUCER}
#: Of both files.
_OF_CONNECTIONS: Final = SUPPORTED_SECURITY | {
    BOOTSTRAP_SERVERS,
    "request.timeout.ms",
    "connections.max.idle.ms",
    "send.buffer.bytes",
    "receive.buffer.bytes",
}
#: What a copy heeds, or has a sentence of its own for.
_HEEDED: Final[Mapping[Side, frozenset[str]]] = {
    "consumer": _OF_CONNECTIONS | CONSUMER.settings.keys() | {"group.instance.id", "group.protocol"},
    "producer": _OF_CONNECTIONS | PRODUCER.settings.keys(),
}
_SPARK: Final = "spark."
_PROVIDERS: Final = "config.providers"
#: Where a sentence for the log goes.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SourceSettings:
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

    sources: tuple[SourceSettings, ...]
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


def _client(side: Side, raw: Properties, tell: Tell) -> _Client:
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


def _source(name: str, client: _Client, tell: Tell) -> SourceSettings:
    props, file = client.props, client.file
    values = _parsed(CONSUMER, client)
    if not values["group.id"]:
        raise file.error("group.id is missing: instances of one group.id share the work", "group.id")
    session_ms = values.integer("session.timeout.ms")
    if props.get("group.instance.id", "").strip():
        tell(f"{file.file}: group.instance.id: members have no fixed names here; they leave and join in seconds")
    if props.get("group.protocol", "").strip().lower() == "consumer":
        tell(f"{file.file}: group.protocol: the group's protocol is the classic one here")
    return SourceSettings(
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
