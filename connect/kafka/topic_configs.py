"""Settings of topics with where they come from, and their change (DescribeConfigs, IncrementalAlterConfigs); and those
of brokers, asked of each.

Outcomes are per topic: one that is refused does not hide what became of the others. Requests hold a bounded number of
topics, so that a broker is never asked for thousands at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kafka.errors import for_code
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.kafka.cluster import Cluster, error_name, refusal_of

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
