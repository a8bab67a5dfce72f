"""What an administrator asks of a cluster: kafka-python's admin client, one per cluster, in threads.

Outcomes are per topic: one that is refused does not hide what became of the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import kafka.errors
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError, SecurityError
from connect.kafka.cluster import error_name
from connect.kafka.connection import Connection
from connect.kafka.settings import ConnectionSettings

T = TypeVar("T")

_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_REPLICATION_FACTOR: Final = 38
_REFUSED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
#: kafka-python's words for a cluster that does not answer.
_UNREACHABLE: Final = (
    kafka.errors.KafkaConnectionError,
    kafka.errors.KafkaTimeoutError,
    kafka.errors.NodeNotReadyError,
)
_NOT_AUTHENTICATED: Final = (
    kafka.errors.SaslAuthenticationFailedError,
    kafka.errors.UnsupportedSaslMechanismError,
    kafka.errors.IllegalSaslStateError,
)


_FEWER_REPLICAS: Final = "set replication.factor and offset.storage.replication.factor lower"
#: The client is only made once a broker has answered; what then still takes this long is broken.
_BOOTSTRAP_TIMEOUT_MS: Final = 10_000

#: The library bounds its requests itself; this is for the case that it does not come back at all.
_CALL_TIMEOUT_S: Final = 45.0


class TopicExists(PermanentError):
    """A topic to be made is there already."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made; -1 takes the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class _AdminClient(KafkaAdminClient):  # type: ignore[misc]  # the library ships no marker for its types
    """The library's, which leaves its thread running where the constructor fails."""

    def __init__(self, **configs: Any) -> None:
        try:
            super().__init__(**configs)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False
                self.close()
            raise


class Admin:
    """One admin client, made when first needed and closed with ``close``. ``name`` is what messages call the cluster,
    ``fewer_replicas`` how they say that a topic is made with fewer.

    Every method raises ClusterUnreachable where no broker answers, SecurityError where one refuses us, else
    RetriableError or PermanentError as Kafka tells.
    """

    def __init__(
        self, settings: ConnectionSettings, name: str | None = None, fewer_replicas: str = _FEWER_REPLICAS
    ) -> None:
        addresses = ",".join(f"{host}:{port}" for host, port in settings.bootstrap)
        self.name = f"{name} ({addresses})" if name else addresses
        self._settings = settings
        self._fewer_replicas = fewer_replicas
        self._client: KafkaAdminClient | None = None
        self._lock = asyncio.Lock()
        # One call at a time: the library's client is not made for several threads.
        self._calling = asyncio.Lock()
        self._closed = False

    async def list_topics(self) -> list[str]:
        """The names of all topics that we may see."""
        names = await self._call("list topics", lambda client: client.list_topics())
        return sorted(names)

    async def describe_topics(self, topics: Collection[str]) -> dict[str, dict[str, Any]]:
        """Kafka's metadata of each topic that exists, as kafka-python words it."""
        rows = await self._call("describe topics", lambda client: client.describe_topics(list(topics)))
        return {row["name"]: row for row in rows if not row["error_code"]}

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, HeliographError | None]:
        """Make topics. By name: None where it was made, TopicExists or another error where not."""
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "configs": dict(topic.configs),
            }
            for topic in topics
        }
        if not wanted:
            return {}
        answer = await self._call(
            "create topics",
            lambda client: client.create_topics(wanted, validate_only=validate_only, raise_errors=False),
        )
        return self._outcomes("create", "CREATE on", answer["topics"])

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, HeliographError | None]:
        """Raise the partition counts of topics to ``counts``. By name: None where done, else why not."""
        if not counts:
            return {}
        answer = await self._call(
            "create partitions", lambda client: client.create_partitions(dict(counts), raise_errors=False)
        )
        rows = answer["results"] if isinstance(answer, dict) else answer.to_dict()["results"]
        return self._outcomes("add partitions to", "ALTER on", rows)

    async def delete_topics(self, topics: Collection[str]) -> dict[str, HeliographError | None]:
        """Delete topics. By name: None where done, else why not."""
        if not topics:
            return {}
        answer = await self._call(
            "delete topics", lambda client: client.delete_topics(list(topics), raise_errors=False)
        )
        return self._outcomes("delete", "DELETE on", answer["topics"])

    async def describe_topic_configs(self, topics: Collection[str]) -> dict[str, dict[str, str | None]]:
        """Every setting of each topic as it is in force, defaults included; empty where we may not look."""
        if not topics:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
        answer = await self._call(
            "describe configs", lambda client: client.describe_configs(resources, config_filter="all")
        )
        return {
            topic: {name: entry["value"] for name, entry in entries.items()}
            for topic, entries in answer.get("topic", {}).items()
        }

    async def close(self) -> None:
        """Close the client, if one was made."""
        self._closed = True
        await self._drop_client()

    async def _drop_client(self) -> None:
        async with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _call(self, what: str, ask: Callable[[KafkaAdminClient], T]) -> T:
        async with self._calling:
            try:
                client = await self._connected()
                return await asyncio.wait_for(asyncio.to_thread(ask, client), _CALL_TIMEOUT_S)
            except kafka.errors.UnknownBrokerIdError as error:
                # The library's metadata has no address of a broker that it names: ask again with fresh metadata.
                await self._drop_client()
                raise RetriableError(f"cluster {self.name}: cannot {what}: node {error} is not known now") from error
            except kafka.errors.KafkaError as error:
                raise self._translated(what, error) from error
            except TimeoutError as error:
                # Its thread may hang for ever: leave it the client and go on with a new one.
                self._client = None
                raise RetriableError(
                    f"cluster {self.name}: no answer to «{what}» within {_CALL_TIMEOUT_S:.0f} s"
                ) from error

    async def _connected(self) -> KafkaAdminClient:
        async with self._lock:
            if self._closed:
                raise RetriableError(f"cluster {self.name}: its admin client was closed")
            if self._client is None:
                await self._probe()
                # Whatever it would log arrives as an exception as well.
                for library in ("kafka", "kafka.net"):  # the second may have a level of its own
                    logging.getLogger(library).setLevel(logging.CRITICAL)
                arguments = self._settings.kafka_python_arguments()
                self._client = await asyncio.to_thread(
                    _AdminClient, **arguments, bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS
                )
            return self._client

    async def _probe(self) -> None:
        """See that a broker takes us: our own connection says why not, at once, where the library only waits."""
        failures: list[str] = []
        for host, port in self._settings.bootstrap:
            try:
                await (await Connection.open(self._settings, host, port)).close()
                return
            except RetriableError as error:
                failures.append(str(error))
            except SecurityError as error:
                raise SecurityError(f"cluster {self.name}: {error}") from error
        raise ClusterUnreachable(f"cluster {self.name}: no broker answers: {'; '.join(failures)}")

    def _translated(self, what: str, error: kafka.errors.KafkaError) -> HeliographError:
        said = " ".join(str(error).split()) or type(error).__name__
        line = f"cluster {self.name}: cannot {what}: {said}"
        if isinstance(error, _UNREACHABLE):
            return ClusterUnreachable(line)
        if isinstance(error, _NOT_AUTHENTICATED):
            return SecurityError(f"{line}; check security.protocol and sasl.*")
        if isinstance(error, kafka.errors.AuthorizationError):
            return SecurityError(f"{line}; grant the right to {what}")
        return RetriableError(line) if getattr(error, "retriable", False) else PermanentError(line)

    def _outcomes(self, verb: str, right: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, HeliographError | None]:
        return {row["name"]: self._outcome(verb, right, row) for row in rows}

    def _outcome(self, verb: str, right: str, row: Mapping[str, Any]) -> HeliographError | None:
        code, topic = row["error_code"], row["name"]
        if not code:
            return None
        said = row.get("error_message") or ""
        line = f"cluster {self.name}: cannot {verb} topic {topic}: {error_name(code)}" + (f": {said}" if said else "")
        if code == _TOPIC_ALREADY_EXISTS:
            return TopicExists(line)
        if code == _INVALID_REPLICATION_FACTOR:
            line += f"; start more brokers, or {self._fewer_replicas}"
        if code in _REFUSED:
            return SecurityError(f"{line}; grant {right} topic {topic}")
        return RetriableError(line) if kafka.errors.for_code(code).retriable else PermanentError(line)
