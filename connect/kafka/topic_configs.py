"""Settings of topics with where they come from, and their change (DescribeConfigs, IncrementalAlterConfigs).

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

from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.kafka.cluster import Cluster, error_name, is_asked_again

#: Topics in one request.
BATCH: Final = 100
_TOPIC: Final = 2
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


async def describe(cluster: Cluster, topics: Collection[str]) -> dict[str, TopicConfigs | HeliographError]:
    """Every setting of each topic, or why it is not shown; SecurityError names the missing right.

    Raises :class:`RetriableError` where no broker answers.
    """
    found: dict[str, TopicConfigs | HeliographError] = {}
    for batch in _batches(sorted(topics)):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=topic, configuration_keys=None
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
    may_pass = is_asked_again(code) if right == _LOOKING else for_code(code).retriable
    return RetriableError(line) if may_pass else PermanentError(line)
