"""Topics made for a source connector before its first record goes there (KIP-158)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from connect.core.alias_defs import topic_creation, uses_topic_creation
from connect.core.config import Values, split_list
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.core.java_regex import compile_java
from connect.core.model import NewTopic
from connect.kafka.admin import TopicExists

log = logging.getLogger(__name__)

_DEFAULT: Final = "default"
_PREFIX: Final = "topic.creation."
_NO_CONFIGS: Final = frozenset({"include", "exclude", "partitions", "replication.factor"})


class TopicAdmin(Protocol):
    """What is asked of :class:`connect.kafka.admin.Admin`."""

    async def describe_topics(self, topics: Sequence[str]) -> Mapping[str, Any]: ...

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, HeliographError | None]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """Topics that are made alike; -1 takes the cluster's default."""

    name: str
    include: Sequence[re.Pattern[str]]
    exclude: Sequence[re.Pattern[str]]
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Whether a topic belongs here; exclusion wins."""
        return not _any(self.exclude, topic) and _any(self.include, topic)

    def new_topic(self, topic: str) -> NewTopic:
        return NewTopic(topic, self.partitions, self.replication_factor, self.configs)


def topic_groups(props: Mapping[str, str]) -> list[TopicGroup]:
    """The groups of a connector in the order in which they are tried, ``default`` last; none where no key is set.

    Raises:
        ConfigError: A key of ``default`` is missing, or a value is wrong.
    """
    if not uses_topic_creation(props):
        return []
    values = topic_creation(props).parse(props)
    listed = split_list(props.get(f"{_PREFIX}groups", ""))
    return [_group(name, props, values) for name in (*(name for name in listed if name != _DEFAULT), _DEFAULT)]


class TopicCreation:
    """Makes the topics of one task; without ``groups`` or ``admin`` it leaves all to the cluster."""

    def __init__(self, groups: Sequence[TopicGroup], admin: TopicAdmin | None) -> None:
        self._groups = groups
        self._admin = admin
        self._there: set[str] = set()

    async def ensure(self, topic: str) -> None:
        """Make ``topic`` where it is missing.

        Raises:
            RetriableError: the cluster does not answer.
            PermanentError: it was refused.
        """
        if self._admin is None or not self._groups or topic in self._there:
            return
        if topic not in await self._admin.describe_topics([topic]):
            await self._create(topic, self._admin)
        self._there.add(topic)

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    async def _create(self, topic: str, admin: TopicAdmin) -> None:
        group = next(group for group in self._groups if group.name == _DEFAULT or group.matches(topic))
        outcome = (await admin.create_topics([group.new_topic(topic)]))[topic]
        if outcome is None:
            log.info("created topic %s with the settings of topic creation group %s", topic, group.name)
        elif isinstance(outcome, TopicExists):
            log.info("topic %s was created by somebody else", topic)
        elif isinstance(outcome, RetriableError):
            raise outcome
        else:
            raise PermanentError(
                f"Task failed to create new topic {topic}. Ensure that the task is authorized to create topics or that "
                f"the topic exists and restart the task: {outcome}"
            ) from outcome


def _group(name: str, props: Mapping[str, str], values: Values) -> TopicGroup:
    prefix = f"{_PREFIX}{name}."
    own = {key[len(prefix) :]: value for key, value in props.items() if key.startswith(prefix)}
    return TopicGroup(
        name,
        [compile_java(each) for each in values.strings(f"{prefix}include")],
        [compile_java(each) for each in values.strings(f"{prefix}exclude")],
        values.integer(f"{prefix}partitions"),
        values.integer(f"{prefix}replication.factor"),
        {key: value for key, value in own.items() if key not in _NO_CONFIGS},
    )


def _any(patterns: Sequence[re.Pattern[str]], topic: str) -> bool:
    return any(pattern.fullmatch(topic) for pattern in patterns)
