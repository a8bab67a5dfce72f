"""The module creates, grows, deletes and describes topics, and reads and changes the configs of topics and brokers.

Configs come with their source (DescribeConfigs, IncrementalAlterConfigs). Outcomes are per topic: one refused topic
does not hide the outcome of the others. Requests hold a bounded number of topics, so that a broker never gets a request
for thousands at once. A topic that the client cannot see does not count as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafka.errors import for_code
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.core.model import NewTopic
from connect.kafka.cluster import Cluster, TopicMetadata, error_name, refusal_of
from connect.kafka.security.connection_settings import ConnectionSettings

#: Topics in one request.
BATCH: Final = 100
_TOPIC: Final = 2
_BROKER: Final = 4
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_SET: Final = 0
_DELETE: Final = 1
_REFUSED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
#: The right that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE_CONFIGS"


class ConfigSource(IntEnum):
    """Where a value comes from (Kafka's ``DescribeConfigsResponse.ConfigSource``)."""

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
    """One setting in force; ``value`` is None where the broker does not show it."""

    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False


#: By key.
TopicConfigs = Mapping[str, TopicConfig]


class UnknownTopic(RetriableError):
    """There is no such topic, or the broker has not heard of it yet."""


async def describe(
    cluster: Cluster, topics: Collection[str], keys: Sequence[str] | None = None
) -> dict[str, TopicConfigs | HeliographError]:
    """Every setting of each topic, or those of ``keys``, or why they are not shown; SecurityError names the missing
    right.

    Raises :class:`RetriableError` where no broker answers.
    """
    found: dict[str, TopicConfigs | HeliographError] = {}
    for batch in _batches(sorted(topics)):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC,
                    resource_name=topic,
                    configuration_keys=None if keys is None else list(keys),
                )
                for topic in batch
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        for row in (await (await cluster.any_connection()).call(request)).results:
            refused = _refusal(cluster, "describe configs of", _LOOKING, row)
            found[row.resource_name] = refused or {
                entry.name: TopicConfig(
                    entry.value, ConfigSource(entry.config_source), bool(entry.read_only), bool(entry.is_sensitive)
                )
                for entry in row.configs
            }
    return found


async def max_message_bytes(cluster: Cluster, topic: str) -> int | None:
    """Return ``max.message.bytes`` of a topic as it is in force; None if we may not look.

    Raises :class:`RetriableError` if no broker tells now.
    """
    value = (await topic_values(cluster, [topic], "max.message.bytes")).get(topic)
    return int(value) if value else None


async def min_insync_replicas(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """Return ``min.insync.replicas`` of those topics that we may look at. Raises as :func:`max_message_bytes`."""
    found = await topic_values(cluster, topics, "min.insync.replicas")
    return {topic: int(value) for topic, value in found.items()}


async def perhaps_compacted(cluster: Cluster, topics: Collection[str], *, in_doubt: bool = True) -> set[str]:
    """Return those of ``topics`` whose records compaction may remove and, ``in_doubt``, those whose settings we may not
    see.

    Raises as :func:`max_message_bytes`.
    """
    found = await topic_values(cluster, topics, "cleanup.policy")
    return {topic for topic in topics if "compact" in found.get(topic, "compact" if in_doubt else "")}


async def topic_values(cluster: Cluster, topics: Collection[str], key: str) -> dict[str, str]:
    """Return one setting of the topics that there are and that we may look at. Raises as :func:`max_message_bytes`."""
    found: dict[str, str] = {}
    for topic, configs in (await describe(cluster, topics, [key])).items():
        if isinstance(configs, RetriableError) and not isinstance(configs, UnknownTopic):
            raise configs
        if not isinstance(configs, HeliographError) and key in configs and (value := configs[key].value):
            found[topic] = value
    return found


async def is_perhaps_true(cluster: Cluster, setting: str) -> bool | None:
    """Whether a broker has ``setting`` at true, or at what it does not tell: of what is of a plug-in, such as an
    authorizer, it tells that it is set, and no value (Kafka ``ConfigHelper``). None where a broker does not let us
    look, and no other has it.

    Raises :class:`RetriableError` where a broker does not answer, or cannot now.
    """
    is_told = True
    for node in sorted((await cluster.metadata(())).brokers):
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node), configuration_keys=[setting]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        for row in (await (await cluster.connection(node)).call(request)).results:
            if row.error_code and for_code(row.error_code).retriable:
                raise RetriableError(f"cluster {cluster.name}: broker {node} does not tell its settings now")
            if any((entry.value or "true").lower() == "true" for entry in row.configs):
                return True
            is_told = is_told and not row.error_code
    return False if is_told else None


async def alter(cluster: Cluster, wanted: Mapping[str, Mapping[str, str | None]]) -> dict[str, HeliographError | None]:
    """Set keys of topics, or reset them to the cluster's default where the value is None. By topic: None where done,
    else why not.

    Raises :class:`RetriableError` where no broker answers, ``UnsupportedVersion`` where brokers are older than 2.3.
    """
    outcomes: dict[str, HeliographError | None] = {}
    resource, config = (
        IncrementalAlterConfigsRequest.AlterConfigsResource,
        IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig,
    )
    for batch in _batches(sorted(wanted)):
        request = IncrementalAlterConfigsRequest(
            resources=[
                resource(
                    resource_type=_TOPIC,
                    resource_name=topic,
                    configs=[
                        config(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                        for key, value in sorted(wanted[topic].items())
                    ],
                )
                for topic in batch
            ],
            validate_only=False,
        )
        for row in (await (await cluster.any_connection()).call(request)).responses:
            outcomes[row.resource_name] = _refusal(cluster, "alter configs of", "ALTER_CONFIGS", row)
    return outcomes


def _batches(topics: Sequence[str]) -> Iterator[Sequence[str]]:
    return (topics[start : start + BATCH] for start in range(0, len(topics), BATCH))


def _refusal(cluster: Cluster, verb: str, right: str, row: Any) -> HeliographError | None:
    code, topic = row.error_code, row.resource_name
    if not code:
        return None
    said = f": {row.error_message}" if row.error_message else ""
    line = f"cluster {cluster.name}: cannot {verb} topic {topic}: {error_name(code)}{said}"
    if code in _REFUSED:
        return SecurityError(f"{line}; grant {right} on topic {topic}")
    if code == _UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(line)
    return refusal_of(code, line, changes=right != _LOOKING)


_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_REPLICATION_FACTOR: Final = 38
_NOT_CONTROLLER: Final = 41
#: A cluster with ZooKeeper may name a controller that has just handed over; brokers learn of the next one in moments.
_NOT_CONTROLLER_PAUSES_S: Final = (0.1, 0.5, 1.0)
_ROWS: Final = {CreateTopicsRequest: "topics", CreatePartitionsRequest: "results", DeleteTopicsRequest: "responses"}
_CONFIGS_REFUSED: Final = frozenset({40, 44})  # INVALID_CONFIG, POLICY_VIOLATION
_FEWER_REPLICAS: Final = "set replication.factor and offset.storage.replication.factor lower"
#: How long a controller may take, or as long as the connection waits where that is less.
_CONTROLLER_MS: Final = 30_000
#: Up to here topics to be deleted are a list of names.
_DELETED_BY_NAME: Final = 5


class TopicExists(PermanentError):
    """A topic to be made is there already."""


class ConfigsRefused(PermanentError):
    """The cluster, or its policy for new topics, refuses the settings of one to be made."""


class Admin:
    """Asks the controller of one cluster, by connections that ``close`` ends. ``name`` is what messages call the
    cluster, ``fewer_replicas`` how they say that a topic is made with fewer.

    Every method raises ClusterUnreachable if no broker answers, SecurityError if one refuses us, else RetriableError.
    """

    def __init__(
        self, settings: ConnectionSettings, name: str | None = None, fewer_replicas: str = _FEWER_REPLICAS
    ) -> None:
        self._cluster = Cluster(settings, name)
        self._fewer_replicas = fewer_replicas
        self._controller_ms = min(_CONTROLLER_MS, settings.request_timeout_ms)

    @property
    def name(self) -> str:
        """The name and the addresses of the cluster."""
        return self._cluster.name

    async def list_topics(self) -> list[str]:
        """Return the names of all topics that we may see."""
        return sorted((await self._cluster.metadata(None)).topics)

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """Return the metadata of each topic that exists."""
        found = (await self._cluster.metadata(topics)).topics
        return {name: topic for name, topic in found.items() if not topic.error_code}

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, HeliographError | None]:
        """Make topics. By name: None if it was made, else TopicExists or another error."""
        creatable = CreateTopicsRequest.CreatableTopic
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
        request = CreateTopicsRequest(topics=rows, timeout_ms=self._controller_ms, validate_only=validate_only)
        return self._outcomes("create", "CREATE on", await self._ask_controller(request))

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, HeliographError | None]:
        """Raise the partition counts of topics to ``counts``. By name: None if done, else why not."""
        if not counts:
            return {}
        row = CreatePartitionsRequest.CreatePartitionsTopic
        rows = [row(name=name, count=count, assignments=None) for name, count in counts.items()]
        request = CreatePartitionsRequest(topics=rows, timeout_ms=self._controller_ms, validate_only=False)
        return self._outcomes("add partitions to", "ALTER on", await self._ask_controller(request))

    async def delete_topics(self, topics: Collection[str]) -> dict[str, HeliographError | None]:
        """Delete topics. By name: None if done, else why not."""
        if not topics:
            return {}
        request = DeleteTopicsRequest(topic_names=list(topics), timeout_ms=self._controller_ms)
        rows = await self._ask_controller(request, at_most=_DELETED_BY_NAME)
        return self._outcomes("delete", "DELETE on", rows)

    async def describe_topic_configs(self, topics: Collection[str]) -> dict[str, dict[str, str | None]]:
        """Return every setting of each topic as it is in force, defaults included; none if we may not look."""
        found = await describe(self._cluster, topics)
        return {
            topic: {} if isinstance(configs, HeliographError) else {key: one.value for key, one in configs.items()}
            for topic, configs in found.items()
        }

    async def close(self) -> None:
        """Close its connections."""
        await self._cluster.close()

    async def _ask_controller(self, request: Any, at_most: int | None = None) -> list[Any]:
        """Ask again if the broker is not the controller any more. A request that may have been carried out, because
        its answer did not come, is not repeated.

        The connection has a purpose of its own: a look-up behind a slow request would time out, and break it off.
        """
        for pause_s in (*_NOT_CONTROLLER_PAUSES_S, None):
            controller = (await self._cluster.metadata(())).controller_id
            answer = await (await self._cluster.connection(controller, "controller")).call(request, at_most=at_most)
            rows: list[Any] = getattr(answer, _ROWS[type(request)])
            if pause_s is None or all(row.error_code != _NOT_CONTROLLER for row in rows):
                break
            await asyncio.sleep(pause_s)
        return rows

    def _outcomes(self, verb: str, right: str, rows: Iterable[Any]) -> dict[str, HeliographError | None]:
        return {row.name: self._outcome(verb, right, row) for row in rows}

    def _outcome(self, verb: str, right: str, row: Any) -> HeliographError | None:
        code = row.error_code
        if not code:
            return None
        said = getattr(row, "error_message", None) or ""
        line = f"cluster {self.name}: cannot {verb} topic {row.name}: {error_name(code)}"
        line += f": {said}" if said else ""
        if code == _TOPIC_ALREADY_EXISTS:
            return TopicExists(line)
        if code == _INVALID_REPLICATION_FACTOR:
            line += f"; start more brokers, or {self._fewer_replicas}"
        if code in _REFUSED:
            return SecurityError(f"{line}; grant {right} topic {row.name}")
        return ConfigsRefused(line) if code in _CONFIGS_REFUSED else refusal_of(code, line)


async def known_topic(cluster: Cluster, name: str) -> TopicMetadata | None:
    """A topic's metadata; None where there is no such topic.

    Raises:
        NotAuthorized: DESCRIBE on it is missing, so that nobody can tell.
        RetriableError: the cluster does not answer, or cannot tell at the moment.
    """
    found = (await cluster.metadata({name})).topics.get(name)
    if found is None or found.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return None
    return (await cluster.topics({name})).topics[name] if found.error_code else found
