"""Encode and decode Fetch requests of any version since Kafka 2.7, and keep incremental fetch sessions (KIP-227).

A session decides what to send so that the broker fetches exactly the wanted partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.connection import Connection
from connect.wire import fetch_produce
from connectors.dataplane.batches import error_codes

K = TypeVar("K")

INITIAL_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

#: Per partition: (fetch offset, current leader epoch, last fetched epoch)
Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SessionRequest(Generic[K]):
    """The session part of one fetch request; partitions in ``forgotten`` leave the session."""

    session_id: int
    epoch: int
    partitions: Mapping[K, Position]
    forgotten: tuple[K, ...]


class FetchSession(Generic[K]):
    """One session with one broker, and what is wanted of it. Call ``want`` and ``leave`` at any time; call ``request``,
    send it, then call ``answered`` or ``lost``; never two at once. The cost of a request depends on what changed since
    the last one, not on how many partitions are wanted."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._wanted: dict[K, Position] = {}
        self._asked: dict[K, Position] = {}  # what the broker's session holds since the last request
        self._changed: dict[K, None] = {}
        self._forgotten: dict[K, None] = {}

    @property
    def wants_any(self) -> bool:
        return bool(self._wanted)

    def asked(self, key: K) -> Position | None:
        """Return the position that an answer to the last request is for."""
        return self._asked.get(key)

    def want(self, key: K, position: Position) -> None:
        """Fetch a partition at a position from the next request on."""
        self._forgotten.pop(key, None)
        if self._wanted.get(key) != position:
            self._wanted[key] = position
            self._changed[key] = None

    def leave(self, key: K) -> None:
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._asked:
                self._forgotten[key] = None

    def request(self) -> SessionRequest[K]:
        """Return the request that makes the session hold exactly what is wanted."""
        if self._epoch == INITIAL_EPOCH:
            request = SessionRequest(0, INITIAL_EPOCH, dict(self._wanted), ())
            self._asked = dict(self._wanted)
        else:
            changed = {key: self._wanted[key] for key in self._changed}
            request = SessionRequest(self._id, self._epoch, changed, tuple(self._forgotten))
            self._asked |= changed
            for key in request.forgotten:
                del self._asked[key]
        self._changed.clear()
        self._forgotten.clear()
        return request

    def answered(self, session_id: int) -> None:
        """Note a good answer; session id 0 means that the broker keeps no session for us."""
        if session_id == 0:
            self.lost()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def lost(self) -> None:
        """Note that the connection, the answer or the session was lost: the next request is a full one."""
        self._id, self._epoch = 0, INITIAL_EPOCH
        self._changed.clear()
        self._forgotten.clear()


FETCH: Final = 1
_MAX_VERSION: Final = 17
_NO_ID: Final = UUID(int=0)
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

#: A partition on the wire: (topic key, index); the key is the topic's id from Fetch 13 on, else its name.
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class TopicOnWire:
    """A topic as a fetch names it."""

    name: str
    topic_id: UUID | None

    def key(self, version: int) -> bytes:
        if version >= fetch_produce.FETCH_TOPIC_IDS_FROM:
            return (self.topic_id or _NO_ID).bytes
        return fetch_produce.topic_name_key(self.name)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    isolation: int
    rack: str = ""


def fetch_version(connection: Connection, topics: Iterable[TopicOnWire]) -> int:
    """Return the highest version both sides know; below 13 if a topic's id is unknown."""
    version = min(_MAX_VERSION, connection.versions[FETCH][1])
    if version >= fetch_produce.FETCH_TOPIC_IDS_FROM and any(topic.topic_id is None for topic in topics):
        return fetch_produce.FETCH_TOPIC_IDS_FROM - 1
    return version


def encode_fetch(
    version: int,
    limits: FetchLimits,
    session: tuple[int, int],
    partitions: Mapping[tuple[TopicOnWire, int], Position],
    forgotten: Iterable[tuple[TopicOnWire, int]] = (),
) -> bytes:
    """Encode a FetchRequest's body; ``session`` is (id, epoch), (0, -1) for none (KIP-227)."""
    topics: dict[TopicOnWire, FetchRequest.FetchTopic] = {}
    for (topic, index), (offset, leader_epoch, last_epoch) in partitions.items():
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchRequest.FetchTopic(
                topic=topic.name, topic_id=topic.topic_id or _NO_ID, partitions=[]
            )
        entry.partitions.append(
            FetchRequest.FetchTopic.FetchPartition(
                partition=index,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=-1,
                partition_max_bytes=limits.partition_max_bytes,
            )
        )
    left: dict[TopicOnWire, list[int]] = {}
    for topic, index in forgotten:
        left.setdefault(topic, []).append(index)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=list(topics.values()),
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=topic.name, topic_id=topic.topic_id or _NO_ID, partitions=indexes)
            for topic, indexes in left.items()
        ],
        rack_id=limits.rack,
    )
    return bytes(request.encode(version=version))


async def fetch(connection: Connection, version: int, body: bytes, max_wait_ms: int) -> fetch_produce.FetchAnswer:
    """Send an encoded fetch and wait for its answer. Raises RetriableError if the connection is lost or stalls, or
    if the answer cannot be read."""
    timeout_s = (connection.request_timeout_ms + max_wait_ms) / 1000
    answer = await connection.answer(connection.send(FETCH, version, [body]), "a fetch", timeout_s)
    try:
        return fetch_produce.decode_fetch(answer, version)
    except fetch_produce.MalformedAnswer as error:
        raise RetriableError(f"{connection.address}: {error}; check what answers at this address") from error


async def fetch_from_leader(
    cluster: Cluster, topic: TopicOnWire, index: int, offset: int, limits: FetchLimits
) -> fetch_produce.FetchedPartition:
    """Fetch a partition once from its leader, as :func:`fetch_one`. Raises RetriableError if it has none, and what
    ``cluster.metadata`` raises."""
    leader = (await cluster.metadata({topic.name})).leader(topic.name, index)
    if leader is None:
        raise RetriableError(f"cluster {cluster.name}: {topic.name}-{index} has no leader now")
    return await fetch_one(await cluster.connection(leader), topic, index, (offset, -1, -1), limits)


async def fetch_one(
    connection: Connection, topic: TopicOnWire, index: int, position: Position, limits: FetchLimits
) -> fetch_produce.FetchedPartition:
    """Fetch one partition once, without a session; its records may be changed in place. Errors as :func:`fetch`."""
    version = fetch_version(connection, (topic,))
    body = encode_fetch(version, limits, (0, -1), {(topic, index): position})
    while True:
        answer = await fetch(connection, version, body, limits.max_wait_ms)
        if answer.partitions:
            return answer.partitions[0]
        if not answer.throttle_time_ms:
            raise RetriableError(f"{connection.address} refuses a fetch: {error_codes.code_name(answer.error_code)}")
        # Above a quota a broker answers without data (Kafka ``FetchContext.getThrottledResponse``).
        connection.mute(answer.throttle_time_ms)
        await connection.unmuted()
