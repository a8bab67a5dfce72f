"""A client's view of a cluster: broker addresses, leaders, and one connection per broker and purpose.

Addresses, connections, leader epochs and, while they respond, coordinators are cached. Leaders are not: callers ask for
them, and ask again after an error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple
from uuid import UUID

from kafka.errors import for_code
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataResponse

from connect.core.errors import ClusterUnreachable, PermanentError, RetriableError, SecurityError
from connect.kafka.concurrency import Pauses, Scope, in_turns
from connect.kafka.connection import Connection
from connect.kafka.long_log import LongLogs
from connect.kafka.security.connection_settings import ConnectionSettings, format_address

log = logging.getLogger(__name__)

#: A running broker answers a lookup at once; one that hangs must not delay asking the next broker.
_LOOKUP_TIMEOUT_MS: Final = 10_000
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_LAST_S: Final = 1.0
#: A deposed broker learns of the new leader sooner than this.
_HIDDEN_S: Final = 60.0
_NO_ID: Final = UUID(int=0)
_KEY_TYPES: Final = {"group": 0, "transaction": 1}
_COORDINATOR_KEYS_FROM: Final = 4
#: Limit on the groups and transactional ids whose coordinators are cached; the oldest entry is dropped first.
_MOST_COORDINATORS: Final = 10_000
#: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the broker is not, or no longer, the coordinator of this group or id.
NOT_THE_COORDINATOR: Final = frozenset({15, 16})
_AUTHORIZATION_FAILED: Final = frozenset({29, 30, 31, 53})  # topic, group, cluster, transactional id
_UNKNOWN_SERVER_ERROR: Final = -1
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_REBOOTSTRAP_REQUIRED: Final = 129

CoordinatorKind = Literal["group", "transaction"]


class NotAuthorized(SecurityError):
    """The cluster has authenticated this client and denies it the request."""


class Broker(NamedTuple):
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    """``leader`` is -1 if there is none, ``leader_epoch`` -1 if the broker is too old to send it; ``in_sync`` holds the
    replicas that count for ``min.insync.replicas``."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    error_code: int
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """``topic_id`` is None below Metadata v10 (Kafka 2.8); ``error_code`` 3 means that the topic does not exist."""

    name: str
    topic_id: UUID | None
    error_code: int
    partitions: dict[int, PartitionMetadata]

    @property
    def exists(self) -> bool:
        """Whether the topic exists on the broker, even if this client may not describe it."""
        return self.error_code != _UNKNOWN_TOPIC_OR_PARTITION


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str | None
    controller_id: int
    brokers: dict[int, Broker]
    topics: dict[str, TopicMetadata]

    def leader(self, topic: str, partition: int) -> int | None:
        at = self._partition(topic, partition)
        return at.leader if at and at.leader >= 0 else None

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the epoch of that leader, so that requests reach no other leader; -1 if it is unknown."""
        at = self._partition(topic, partition)
        return at.leader_epoch if at else -1

    def _partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found else None


class LeaderEpochs:
    """The newest leader epochs, which only grow while a topic keeps its id (Java: ``Metadata.updateLastSeenEpoch``).
    Topics without an id are not tracked, because their epochs restart when the topic is recreated."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._seen: dict[str, tuple[UUID, dict[int, int]]] = {}
        #: When metadata began to show only leaders of older epochs; infinite once that was logged.
        self._hidden_since_s: dict[tuple[str, int], float] = {}

    def saw(self, topic: str, topic_id: UUID | None, partition: int, epoch: int) -> None:
        """Record an epoch that a partition has reached, according to a batch or a stored position."""
        if topic_id is not None:
            seen = self._of(topic, topic_id)
            seen[partition] = max(epoch, seen.get(partition, -1))

    def current(self, topic: TopicMetadata) -> TopicMetadata:
        """Return the topic without leaders of outdated epochs, and record the epochs of the others."""
        if topic.topic_id is None:
            return topic
        seen = self._of(topic.name, topic.topic_id)
        over = {}
        for index, known in topic.partitions.items():
            if known.leader_epoch < seen.get(index, -1):
                over[index] = known._replace(leader=-1)
                if known.leader >= 0:
                    self._hidden(topic.name, index, known.leader_epoch, seen[index])
            else:
                seen[index] = known.leader_epoch
                self._hidden_since_s.pop((topic.name, index), None)
        return replace(topic, partitions=topic.partitions | over) if over else topic

    def keep(self, topics: Collection[str]) -> None:
        """Forget all other topics."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in topics}
        self._hidden_since_s = {one: since_s for one, since_s in self._hidden_since_s.items() if one[0] in topics}

    def _hidden(self, topic: str, index: int, epoch: int, newest: int) -> None:
        now_s = time.monotonic()
        if now_s - self._hidden_since_s.setdefault((topic, index), now_s) < _HIDDEN_S:
            return
        self._hidden_since_s[topic, index] = math.inf
        log.error(
            "cluster %s: %s-%d has had a leader of epoch %d for %g s after epoch %d, so the partition is treated as "
            "leaderless; if the cluster was restored from an older state, reset the stored source offsets of the topic "
            "and restart this process",
            *(self._cluster, topic, index, epoch, _HIDDEN_S, newest),
        )

    def _of(self, topic: str, topic_id: UUID) -> dict[int, int]:
        known_id, seen = self._seen.get(topic, (None, {}))
        if known_id != topic_id:
            seen = {}
            self._seen[topic] = topic_id, seen
        return seen


class Cluster:
    """Finds brokers and keeps connections to them. ``name`` identifies the cluster in messages, e.g. its alias.
    ``long_logs`` is shared by clients that read the same logs; its owner closes it."""

    def __init__(
        self, settings: ConnectionSettings, name: str | None = None, *, long_logs: LongLogs | None = None
    ) -> None:
        self.settings = settings
        addresses = ",".join(f"{host}:{port}" for host, port in settings.bootstrap)
        self.name = f"{name} ({addresses})" if name else addresses
        self.alias = name
        self._lookup_timeout_ms = min(_LOOKUP_TIMEOUT_MS, settings.request_timeout_ms)
        self._brokers: dict[int, Broker] = {}
        self._connections: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None
        self._opening: dict[tuple[int, str], asyncio.Lock] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._scope = Scope(f"cluster {self.name}")
        self._refreshing: dict[frozenset[str] | None, asyncio.Task[ClusterMetadata]] = {}
        self._addresses_stale = True
        self._closed = False
        #: Makes metadata leave out leaders of an older epoch than the newest known.
        self.leader_epochs = LeaderEpochs(self.name)
        self._own_logs = LongLogs()
        #: Reads long logs.
        self.long_logs = long_logs or self._own_logs

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of the known brokers and of the configured ones, as ``host:port``."""
        return frozenset(format_address(host, port) for host, port in self._addresses())

    def seen_by(self, client_id: str) -> Cluster:
        """Return the same cluster for another client id, with its own connections; the caller closes it."""
        return Cluster(self.settings.with_client_id(client_id), self.alias)

    async def wait_reachable(self, waiting: Callable[[RetriableError], None], every_s: float = 5.0) -> None:
        """Wait until a broker answers, without a limit; pass the error to ``waiting`` every ``every_s``. Raises
        SecurityError if a broker answers and rejects this client; waiting would not help."""
        clock = asyncio.get_running_loop().time
        said_s, pauses = clock() - every_s, Pauses(_BACKOFF_FIRST_S, _BACKOFF_LAST_S)
        while True:
            try:
                await self.metadata(())
                return
            except RetriableError as error:
                if self._closed:
                    raise
                if clock() - said_s >= every_s:
                    said_s = clock()
                    waiting(error)
            await pauses.wait()

    async def metadata(self, topics: Collection[str] | None) -> ClusterMetadata:
        """Return the metadata of ``topics`` (None: all, empty: brokers only). Never creates topics. Simultaneous calls
        with the same topics share one request. Raises ClusterUnreachable if no broker answers."""
        self._check_open()
        key = None if topics is None else frozenset(topics)
        task = self._refreshing.get(key)
        if task is None:
            task = self._scope.spawn(self._refresh(key), f"metadata of cluster {self.name}")
            task.add_done_callback(lambda done: self._refreshed(key, done))
            self._refreshing[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by close(), not by the caller
                self._check_open()
            raise

    async def topics(self, names: Collection[str]) -> ClusterMetadata:
        """Return the metadata of topics that must exist. Raises NotAuthorized if DESCRIBE on a topic is missing, and
        RetriableError if a topic does not exist, or the broker does not know it yet."""
        metadata = await self.metadata(names)
        for name in names:
            topic = metadata.topics.get(name)
            code = topic.error_code if topic else _UNKNOWN_TOPIC_OR_PARTITION
            if code in _AUTHORIZATION_FAILED:
                raise NotAuthorized(
                    f"cluster {self.name}: access to topic {name} is denied: {error_name(code)}; "
                    f"grant DESCRIBE on topic {name}"
                )
            if code:
                raise RetriableError(f"cluster {self.name} has no topic {name} at the moment: {error_name(code)}")
        return metadata

    async def connection(self, node_id: int, purpose: str = "control") -> Connection:
        """Return the connection to a broker for a purpose; open it if necessary. Purposes never wait for each other. If
        a purpose has several connections, a number follows its name: ``copy 2``. Raises ClusterUnreachable if the
        broker does not answer, or is not in the cluster."""
        key = (node_id, purpose)
        async with self._opening.setdefault(key, asyncio.Lock()):
            self._check_open()
            current = self._connections.get(key)
            if current and self._usable(current):
                return current
            if current:
                await current.close()
            broker = await self._broker(node_id)
            try:
                opened = await self._open(broker.host, broker.port)
            except RetriableError as error:
                self._addresses_stale = True
                raise ClusterUnreachable(f"cluster {self.name}: broker {node_id}: {error}") from error
            if self._closed:
                await opened.close()
                self._check_open()
            self._connections[key] = opened
            return opened

    def opened(self, node_id: int, purpose: str) -> Connection | None:
        current = self._connections.get((node_id, purpose))
        return current if current is not None and self._usable(current) else None

    def answered_s(self, purpose: str) -> float | None:
        """Return when a broker last answered on a known connection of this purpose, in the loop's time."""
        return max((at for one in self._known(purpose) if (at := one.answered_s) is not None), default=None)

    def take_throttled_ms(self, purpose: str) -> int:
        """Return the longest that a quota has delayed a connection of this purpose since the last call."""
        return max((one.take_throttled_ms() for one in self._known(purpose)), default=0)

    def _known(self, purpose: str) -> Iterator[Connection]:
        return (one for (_, each), one in self._connections.items() if each.partition(" ")[0] == purpose)

    async def disconnect(self, node_id: int, purpose: str) -> None:
        """Close the connection for a purpose, if it is open; its requests in flight fail with ConnectionLost."""
        if current := self._connections.pop((node_id, purpose), None):
            await current.close()

    async def any_connection(self) -> Connection:
        """Return a control connection to any broker that answers: an open one, a known broker or a bootstrap address.
        Raises ClusterUnreachable if no broker answers; the message has the reason for each address."""
        open_ones = [
            connection
            for (_, purpose), connection in self._connections.items()
            if purpose == "control" and self._usable(connection)
        ]
        if self._bootstrap and self._usable(self._bootstrap):
            open_ones.append(self._bootstrap)
        return random.choice(open_ones) if open_ones else await self._open_any()

    async def coordinator(self, key: str, kind: CoordinatorKind) -> Connection:
        """Return the connection, with its own purpose, to the coordinator of a group or transactional id. A cached
        coordinator is used while it responds, so pass the error code of each response to ``forget_coordinator``. Raises
        the errors of ``find_coordinator``."""
        node = self._coordinators.get((kind, key))
        known = None if node is None else self.opened(node, kind)
        if known is not None and known.answered_s is not None:
            silent_s = asyncio.get_running_loop().time() - known.answered_s
            if silent_s * 1000 < self._lookup_timeout_ms:
                return known
        self._coordinators.pop((kind, key), None)
        node = await self.find_coordinator(key, kind)
        connection = await self.connection(node, kind)
        self._coordinators[kind, key] = node
        if len(self._coordinators) > _MOST_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]
        return connection

    def forget_coordinator(self, key: str, kind: CoordinatorKind, code: int) -> None:
        """Drop the cached coordinator if an error code means that it has changed."""
        if code in NOT_THE_COORDINATOR:
            self._coordinators.pop((kind, key), None)

    async def find_coordinator(self, key: str, kind: CoordinatorKind, *, timeout_ms: int | None = None) -> int:
        """Return the id of the broker that coordinates a group or transactional id. ``timeout_ms``: limit for the
        broker that is asked; None means the limit of every lookup. Raises RetriableError if there is no coordinator
        yet, because a cluster's first request makes it create its topic, and NotAuthorized if DESCRIBE on the group or
        transactional id is missing."""
        connection = await self.any_connection()
        request = FindCoordinatorRequest(key_type=_KEY_TYPES[kind])
        version = connection.version_of(request)
        if version >= _COORDINATOR_KEYS_FROM:
            request.coordinator_keys = [key]
        else:
            request.key = key
        answer = await connection.call(request, version, timeout_ms=timeout_ms or self._lookup_timeout_ms)
        found = answer.coordinators[0] if version >= _COORDINATOR_KEYS_FROM else answer
        what = f"{kind} {key}" if kind == "group" else f"transactional id {key}"
        if found.error_code in _AUTHORIZATION_FAILED:
            raise NotAuthorized(
                f"cluster {self.name}: access to the coordinator of {what} is denied: {error_name(found.error_code)}; "
                f"grant DESCRIBE on it"
            )
        if found.error_code:
            line = f"cluster {self.name}: no coordinator for {what}: {error_name(found.error_code)}"
            raise refusal_of(found.error_code, line, changes=False)
        if found.node_id not in self._brokers:
            self._brokers[found.node_id] = Broker(found.host, found.port)
        node_id: int = found.node_id
        return node_id

    async def close(self) -> None:
        """Close every connection; requests in flight fail with ConnectionLost."""
        self._closed = True
        self._own_logs.close()
        await self._scope.close()
        connections = [*self._connections.values(), *filter(None, [self._bootstrap])]
        self._connections.clear()
        self._bootstrap = None
        await asyncio.gather(*(connection.close() for connection in connections))

    def _check_open(self) -> None:
        if self._closed:
            raise RetriableError(f"cluster {self.name}: its client was closed")

    def _usable(self, connection: Connection) -> bool:
        """Whether to keep using the connection. After a long idle time it is replaced before the broker closes it
        (``connections.max.idle.ms``)."""
        return not connection.closed and connection.idle_s * 1000 < self.settings.connections_max_idle_ms

    async def _broker(self, node_id: int) -> Broker:
        if node_id not in self._brokers or self._addresses_stale:
            await self.metadata(())
        broker = self._brokers.get(node_id)
        if broker is None:
            raise ClusterUnreachable(f"cluster {self.name} has no broker {node_id} at the moment")
        return broker

    async def _open(self, host: str, port: int) -> Connection:
        try:
            return await Connection.open(self.settings, host, port)
        except SecurityError as error:
            raise SecurityError(f"cluster {self.name}: {error}") from error

    async def _open_any(self) -> Connection:
        self._check_open()
        failures: list[str] = []
        for host, port in self._addresses():
            try:
                opened = await self._open(host, port)
            except RetriableError as error:
                failures.append(str(error))
                continue
            if self._closed or (self._bootstrap and self._usable(self._bootstrap)):
                await opened.close()  # another task was faster
            else:
                self._bootstrap = opened
            self._check_open()
            assert self._bootstrap is not None
            return self._bootstrap
        raise ClusterUnreachable(f"cluster {self.name}: no broker answers: {'; '.join(failures)}", self.addresses)

    def _addresses(self) -> Iterator[tuple[str, int]]:
        """Yield known brokers, then the configured ones (KIP-899: the whole cluster may have moved), each once."""
        known = [(broker.host, broker.port) for broker in self._brokers.values()]
        configured = list(self.settings.bootstrap)
        random.shuffle(known)
        random.shuffle(configured)
        yield from dict.fromkeys([*known, *configured])

    async def _refresh(self, topics: frozenset[str] | None) -> ClusterMetadata:
        named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        tries = 1 + len(self._connections) + len(self._brokers) + len(self.settings.bootstrap)
        while True:
            tries -= 1
            connection = await self.any_connection()
            try:
                answer = await connection.call(request, timeout_ms=self._lookup_timeout_ms)
                break
            except RetriableError as error:
                # A closed connection is not offered again, so each attempt uses another broker or a new connection.
                if not tries:
                    raise ClusterUnreachable(
                        f"cluster {self.name}: {error}; check that the listener uses security.protocol "
                        f"{self.settings.security_protocol}",
                        self.addresses,
                    ) from error
                log.debug("cluster %s: %s; asking another broker", self.name, error)
        metadata = await self._take(answer)
        if topics is None and metadata.brokers:
            self.leader_epochs.keep(metadata.topics)
        return metadata

    async def _take(self, answer: MetadataResponse) -> ClusterMetadata:
        if getattr(answer, "error_code", 0) == _REBOOTSTRAP_REQUIRED:
            self._brokers.clear()
            raise RetriableError(f"cluster {self.name} asks its clients to bootstrap again")
        brokers = {row.node_id: Broker(row.host, row.port, row.rack) for row in answer.brokers}
        topics = {row.name: self.leader_epochs.current(_topic(row)) async for row in in_turns(answer.topics)}
        metadata = ClusterMetadata(answer.cluster_id, answer.controller_id, brokers, topics)
        if metadata.brokers:  # a broker that is starting may know none yet
            self._brokers = dict(metadata.brokers)
            self._addresses_stale = False
        return metadata

    def _refreshed(self, key: frozenset[str] | None, task: asyncio.Task[ClusterMetadata]) -> None:
        del self._refreshing[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case every caller was cancelled


def is_asked_again(code: int) -> bool:
    """Return whether to retry a request that changes nothing after this error code. Brokers send UNKNOWN_SERVER_ERROR
    for errors without a code, such as a file that they can no longer read while they shut down."""
    return code == _UNKNOWN_SERVER_ERROR or bool(for_code(code).retriable)


def refusal_of(code: int, line: str, *, changes: bool = True) -> RetriableError | PermanentError:
    """Return the error for a response with this code: retriable or permanent. A request that ``changes`` nothing is
    judged by :func:`is_asked_again`."""
    may_pass = for_code(code).retriable if changes else is_asked_again(code)
    return RetriableError(line) if may_pass else PermanentError(line)


def error_name(code: int) -> str:
    """Return a code as Kafka's documentation shows it: ``NOT_COORDINATOR (16)``."""
    error = for_code(code)
    return f"{getattr(error, 'message', error.__name__)} ({code})"


def _topic(row: MetadataResponse.MetadataResponseTopic) -> TopicMetadata:
    topic_id = getattr(row, "topic_id", None)
    return TopicMetadata(
        row.name,
        topic_id if topic_id != _NO_ID else None,
        row.error_code,
        {
            part.partition_index: PartitionMetadata(
                part.leader_id,
                -1 if part.leader_epoch is None else part.leader_epoch,
                tuple(part.replica_nodes),
                part.error_code,
                tuple(part.isr_nodes),
            )
            for part in row.partitions
        },
    )
