"""Creates, grows, deletes and describes topics, and reads and changes the configs of topics and brokers.

Configs come with their source (DescribeConfigs, IncrementalAlterConfigs). Outcomes are per topic: one refused topic
does not hide the outcome of the others. Requests hold a limited number of topics, so that a broker never gets a request
for thousands at once. A topic that the client cannot see does not count as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

from kafka.errors import for_code
from kafka.protocol import admin

from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import FACTOR_KEYS, NewTopic
from connect.kafka.authorization import AclBinding, Outcomes, create_acls, delete_acls
from connect.kafka.cluster import Cluster, TopicMetadata, error_name, refusal_of
from connect.kafka.connection import Connection
from connect.kafka.security.connection_settings import ConnectionSettings

T = TypeVar("T")

#: Topics in one request.
_BATCH: Final = 100
_TOPIC: Final = 2
_BROKER: Final = 4
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_SET: Final = 0
_DELETE: Final = 1
_REFUSED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
#: The operation that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE_CONFIGS"


class ConfigSource(IntEnum):
    """The origin of a config value (Kafka's ``DescribeConfigsResponse.ConfigSource``)."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A config value in effect; ``value`` is None if the broker does not show it."""

    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False


#: By key.
TopicConfigs = Mapping[str, TopicConfig]


class UnknownTopic(RetriableError):
    """The topic does not exist, or the broker does not know it yet."""


async def describe(
    cluster: Cluster, topics: Collection[str], keys: Sequence[str] | None = None
) -> dict[str, TopicConfigs | HeliographError]:
    """Return all configs of each topic, or those of ``keys``, or its error; a SecurityError names the missing right.
    Raises :class:`RetriableError` if no broker answers."""
    found: dict[str, TopicConfigs | HeliographError] = {}
    for batch in batches(sorted(topics)):
        for row in await _described(await cluster.any_connection(), _TOPIC, batch, keys):
            refused = _refusal(cluster.name, "describe configs of", _LOOKING, row.resource_name, row)
            found[row.resource_name] = refused or {
                entry.name: TopicConfig(
                    entry.value, ConfigSource(entry.config_source), bool(entry.read_only), bool(entry.is_sensitive)
                )
                for entry in row.configs
            }
    return found


async def _described(connection: Connection, kind: int, names: Sequence[str], keys: Sequence[str] | None) -> list[Any]:
    resource = admin.DescribeConfigsRequest.DescribeConfigsResource
    wanted = None if keys is None else list(keys)
    request = admin.DescribeConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configuration_keys=wanted) for name in names],
        include_synonyms=False,
        include_documentation=False,
    )
    rows: list[Any] = (await connection.call(request)).results
    return rows


async def max_message_bytes(cluster: Cluster, topic: str) -> int | None:
    """Return ``max.message.bytes`` of a topic; None if this client may not describe it. Raises :class:`RetriableError`
    if no broker can answer now."""
    value = (await topic_values(cluster, [topic], "max.message.bytes")).get(topic)
    return int(value) if value else None


async def min_insync_replicas(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """Return ``min.insync.replicas`` of the topics that may be described. Raises :class:`RetriableError`."""
    found = await topic_values(cluster, topics, "min.insync.replicas")
    return {topic: int(value) for topic, value in found.items()}


async def perhaps_compacted(cluster: Cluster, topics: Collection[str], *, in_doubt: bool = True) -> set[str]:
    """Return the topics whose records compaction may remove and, with ``in_doubt``, those that may not be described.
    Raises :class:`RetriableError`."""
    found = await topic_values(cluster, topics, "cleanup.policy")
    return {topic for topic in topics if "compact" in found.get(topic, "compact" if in_doubt else "")}


async def topic_values(cluster: Cluster, topics: Collection[str], key: str) -> dict[str, str]:
    """Return one config of the topics that exist and may be described. Raises :class:`RetriableError`."""
    found: dict[str, str] = {}
    for topic, configs in (await describe(cluster, topics, [key])).items():
        if isinstance(configs, RetriableError) and not isinstance(configs, UnknownTopic):
            raise configs
        if not isinstance(configs, HeliographError) and key in configs and (value := configs[key].value) is not None:
            found[topic] = value
    return found


async def is_perhaps_true(cluster: Cluster, setting: str) -> bool | None:
    """Return whether a broker has ``setting`` at true, or set without a visible value: brokers hide values of plugins
    such as authorizers (Kafka ``ConfigHelper``). None if a broker denies access and no other has it. Raises
    :class:`RetriableError` if a broker does not or cannot answer now."""
    is_known = True
    for node in sorted((await cluster.metadata(())).brokers):
        for row in await _described(await cluster.connection(node), _BROKER, [str(node)], [setting]):
            if row.error_code and for_code(row.error_code).retriable:
                raise RetriableError(f"cluster {cluster.name}: broker {node} cannot describe its configs now")
            if any((entry.value or "true").lower() == "true" for entry in row.configs):
                return True
            is_known = is_known and not row.error_code
    return False if is_known else None


async def alter(cluster: Cluster, wanted: Mapping[str, Mapping[str, str | None]]) -> dict[str, HeliographError | None]:
    """Set configs of topics; a value of None resets the config to the cluster's default. Return by topic None or its
    error. Raises :class:`RetriableError` if no broker answers, ``UnsupportedVersion`` if brokers are older than 2.3."""
    outcomes: dict[str, HeliographError | None] = {}
    resource = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
    for batch in batches(sorted(wanted)):
        request = admin.IncrementalAlterConfigsRequest(
            resources=[
                resource(
                    resource_type=_TOPIC,
                    resource_name=topic,
                    configs=[
                        resource.AlterableConfig(
                            name=key, config_operation=_DELETE if value is None else _SET, value=value
                        )
                        for key, value in sorted(wanted[topic].items())
                    ],
                )
                for topic in batch
            ],
            validate_only=False,
        )
        for row in (await (await cluster.any_connection()).call(request)).responses:
            outcomes[row.resource_name] = _refusal(
                cluster.name, "alter configs of", "ALTER_CONFIGS", row.resource_name, row
            )
    return outcomes


def batches(of_topics: Sequence[T]) -> Iterator[Sequence[T]]:
    return (of_topics[start : start + _BATCH] for start in range(0, len(of_topics), _BATCH))


def _refusal(
    cluster: str, verb: str, right: str, topic: str, row: Any, fewer_replicas: str = ""
) -> HeliographError | None:
    """Return the error in a response's row about a topic, if it is one."""
    if not (code := row.error_code):
        return None
    said = getattr(row, "error_message", None)
    line = f"cluster {cluster}: cannot {verb} topic {topic}: {error_name(code)}" + (f": {said}" if said else "")
    if code in _REFUSED:
        return SecurityError(f"{line}; grant {right} on topic {topic}")
    if code == _UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(line)
    if code == _TOPIC_ALREADY_EXISTS:
        return TopicExists(line)
    if code in _CONFIGS_REFUSED:
        return ConfigsRefused(line)
    if code == _INVALID_REPLICATION_FACTOR:
        line += f"; start more brokers, or {fewer_replicas}"
    return refusal_of(code, line, changes=right != _LOOKING)


_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_REPLICATION_FACTOR: Final = 38
_NOT_CONTROLLER: Final = 41
#: A cluster with ZooKeeper may name a controller that has just resigned; brokers learn of the next one in moments.
_NOT_CONTROLLER_PAUSES_S: Final = (0.1, 0.5, 1.0)
_ROWS: Final = {
    admin.CreateTopicsRequest: "topics",
    admin.CreatePartitionsRequest: "results",
    admin.DeleteTopicsRequest: "responses",
}
_CONFIGS_REFUSED: Final = frozenset({40, 44})  # INVALID_CONFIG, POLICY_VIOLATION
_FEWER_REPLICAS: Final = f"set {', '.join(FACTOR_KEYS)} lower"
#: Timeout of a controller request, unless the connection's timeout is shorter.
_CONTROLLER_MS: Final = 30_000
#: Up to this version the topics to delete are a list of names.
_DELETED_BY_NAME: Final = 5


class TopicExists(PermanentError):
    """The topic to create exists."""


class ConfigsRefused(PermanentError):
    """The cluster or its create-topic policy rejects the configs of a new topic."""


class Admin:
    """Sends requests to the controller of one cluster, over connections that ``close`` ends. Messages use ``name`` for
    the cluster and ``fewer_replicas`` as the remedy for a replication factor that is too high. Every method raises
    ClusterUnreachable, SecurityError or another RetriableError."""

    def __init__(
        self, settings: ConnectionSettings, name: str | None = None, fewer_replicas: str = _FEWER_REPLICAS
    ) -> None:
        self._cluster = Cluster(settings, name)
        self._fewer_replicas = fewer_replicas
        self._controller_ms = min(_CONTROLLER_MS, settings.request_timeout_ms)

    @property
    def name(self) -> str:
        return self._cluster.name

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """Return the metadata of each topic that exists."""
        found = (await self._cluster.metadata(topics)).topics
        return {name: topic for name, topic in found.items() if not topic.error_code}

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]:
        """Create topics. Return by name None, TopicExists or another error."""
        creatable = admin.CreateTopicsRequest.CreatableTopic
        rows = [
            creatable(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=[],
                configs=[creatable.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
            )
            for topic in topics
        ]
        if not rows:
            return {}
        request = admin.CreateTopicsRequest(topics=rows, timeout_ms=self._controller_ms, validate_only=False)
        return self._outcomes("create", "CREATE", await self._ask_controller(request))

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, HeliographError | None]:
        """Raise the partition counts of topics to ``counts``. Return by name None or an error."""
        if not counts:
            return {}
        row = admin.CreatePartitionsRequest.CreatePartitionsTopic
        rows = [row(name=name, count=count, assignments=None) for name, count in counts.items()]
        request = admin.CreatePartitionsRequest(topics=rows, timeout_ms=self._controller_ms, validate_only=False)
        return self._outcomes("add partitions to", "ALTER", await self._ask_controller(request))

    async def delete_topics(self, topics: Collection[str]) -> dict[str, HeliographError | None]:
        """Delete topics. Return by name None or an error."""
        if not topics:
            return {}
        request = admin.DeleteTopicsRequest(topic_names=list(topics), timeout_ms=self._controller_ms)
        rows = await self._ask_controller(request, at_most=_DELETED_BY_NAME)
        return self._outcomes("delete", "DELETE", rows)

    async def alter_topic_configs(
        self, wanted: Mapping[str, Mapping[str, str | None]]
    ) -> Mapping[str, HeliographError | None]:
        """Set configs of topics, as :func:`alter` does."""
        return await alter(self._cluster, wanted)

    async def create_acls(self, rules: Sequence[AclBinding]) -> Outcomes:
        """Create ACLs, as :func:`connect.kafka.authorization.create_acls` does."""
        return await create_acls(self._cluster, rules)

    async def delete_acls(self, rules: Sequence[AclBinding]) -> Outcomes:
        """Delete ACLs, as :func:`connect.kafka.authorization.delete_acls` does."""
        return await delete_acls(self._cluster, rules)

    async def describe_topic_configs(self, topics: Collection[str]) -> dict[str, dict[str, str | None]]:
        """Return all configs in effect by topic, defaults included; none for a topic that may not be described."""
        found = await describe(self._cluster, topics)
        return {
            topic: {} if isinstance(configs, HeliographError) else {key: one.value for key, one in configs.items()}
            for topic, configs in found.items()
        }

    async def close(self) -> None:
        await self._cluster.close()

    async def _ask_controller(self, request: Any, at_most: int | None = None) -> list[Any]:
        """Send a request, again if the broker is no longer the controller. A request without a response may have been
        carried out and is not repeated. The connection has its own purpose, because a lookup behind a slow request
        would time out and close it."""
        for pause_s in (*_NOT_CONTROLLER_PAUSES_S, None):
            controller = (await self._cluster.metadata(())).controller_id
            answer = await (await self._cluster.connection(controller, "controller")).call(request, at_most=at_most)
            rows: list[Any] = getattr(answer, _ROWS[type(request)])
            if pause_s is None or all(row.error_code != _NOT_CONTROLLER for row in rows):
                break
            await asyncio.sleep(pause_s)
        return rows

    def _outcomes(self, verb: str, right: str, rows: Iterable[Any]) -> dict[str, HeliographError | None]:
        return {row.name: _refusal(self.name, verb, right, row.name, row, self._fewer_replicas) for row in rows}


async def known_topic(cluster: Cluster, name: str) -> TopicMetadata | None:
    """Return a topic's metadata; None if the topic does not exist. Raises NotAuthorized if DESCRIBE on the topic is
    missing, and RetriableError if the cluster does not or cannot answer at the moment."""
    found = (await cluster.metadata({name})).topics.get(name)
    if found is None or found.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return None
    return (await cluster.topics({name})).topics[name] if found.error_code else found
