"""Keys of the clients that MirrorMaker 1 had before Kafka 0.9 and of its own files: what takes the place of each. Pure.

``docs/mirrormaker-1.md`` shows this table; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["consumer", "producer"]

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
    side: Side
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
_WITHOUT_EFFECT: Final[Mapping[Side, Mapping[str, str]]] = {
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
_RENAMED: Final[tuple[tuple[Side, str, str, Callable[[str], str]], ...]] = (
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


def old_key(side: Side, name: str) -> OldKey | None:
    """What is known of a key that is no client's of today, or without effect here."""
    return _BY_NAME.get((side, name))


@dataclass(frozen=True, slots=True)
class Translated:
    """A file's ``props`` under the keys of today. ``said``: of each older key its sentence. ``origins``: the older key
    whose value one of today has, by the latter."""

    props: Mapping[str, str]
    said: tuple[str, ...]
    origins: Mapping[str, str]


def translated(side: Side, props: Mapping[str, str]) -> Translated:
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
    return Translated(found, tuple(said), origins)
