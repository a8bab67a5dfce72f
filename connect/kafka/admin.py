"""Topics made, grown, deleted and described, as an administrator does it.

Outcomes are per topic: one that is refused does not hide what became of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

from connect.core.errors import HeliographError, PermanentError, SecurityError
from connect.core.model import NewTopic
from connect.kafka import topic_configs
from connect.kafka.cluster import Cluster, TopicMetadata, error_name, refusal_of
from connect.kafka.settings import ConnectionSettings

_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_REPLICATION_FACTOR: Final = 38
_NOT_CONTROLLER: Final = 41
#: A cluster with ZooKeeper may name a controller that has just handed over; brokers learn of the next one in moments.
_NOT_CONTROLLER_PAUSES_S: Final = (0.1, 0.5, 1.0)
_ROWS: Final = {CreateTopicsRequest: "topics", CreatePartitionsRequest: "results", DeleteTopicsRequest: "responses"}
_CONFIGS_REFUSED: Final = frozenset({40, 44})  # INVALID_CONFIG, POLICY_VIOLATION
_REFUSED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
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
        found = await topic_configs.describe(self._cluster, topics)
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
