"""Describe a run's changes to a cluster as data, so that they can be shown first, and apply those to topics. A refused
change is logged, and does not stop the others."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.core.audit import state_changed
from connect.core.model import NewTopic
from connect.core.wording import counted
from connect.kafka.authorization import AclBinding
from connect.kafka.log.topic_admin import Admin, TopicExists, batches


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create ``topic`` on the target for ``source_topic``, which is empty if it has no source topic."""

    topic: str
    source_topic: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Grow a topic from ``have`` partitions to ``want``."""

    topic: str
    source_topic: str
    have: int
    want: int


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Change one setting of a topic; ``after`` None resets it to the cluster's default. ``before`` is in force now."""

    topic: str
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete ``topic``: ``source_topic`` was deleted at ``gone_since_ms``; not before ``due_ms`` (since 1970)."""

    topic: str
    source_topic: str
    gone_since_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Move a group without members to its next record to read; ``before`` is None if it has no offset."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class CreateAcl:
    binding: AclBinding


@dataclass(frozen=True, slots=True)
class DeleteAcl:
    """Delete an ACL; only ever one that this flow has created."""

    binding: AclBinding


Change = CreateTopic | AddPartitions | AlterConfig | DeleteTopic | MoveGroup | CreateAcl | DeleteAcl


log = logging.getLogger(__name__)

#: A broker's answer to a setting that it does not know (Kafka ``LogConfig.validateNames``).
_UNKNOWN_SETTING: Final = re.compile(r"Unknown topic config name: (\S+)")


class Refusals:
    """Changes of topics that a cluster refuses. They are planned again each time, and logged if they differ."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self._said: dict[str, str] = {}

    def take(self, topic: str, error: Exception) -> None:
        if self._said.get(topic) != str(error):
            log.error("%s: topic was not changed: %s", self.flow, error)
        self._said[topic] = str(error)

    def forget(self, topic: str) -> None:
        """Forget a refusal because the change was made: the same refusal would be news again."""
        self._said.pop(topic, None)


async def make_topics(admin: Admin, changes: Sequence[CreateTopic], refusals: Refusals) -> list[CreateTopic]:
    """Create topics. Return those that exist now. A refused topic is logged and planned again, as in Java; a setting
    that the cluster's brokers do not know, because of their release, is left out."""
    made = []
    for batch in batches(changes):
        wanted = {change.topic: change.configs for change in batch}
        while wanted:
            outcomes = await admin.create_topics(
                NewTopic(change.topic, change.partitions, change.replication_factor, wanted[change.topic])
                for change in batch
                if change.topic in wanted
            )
            wanted = _without_unknown(refusals.flow, wanted, outcomes)
            made += [
                change
                for change in batch
                if change.topic in outcomes and change.topic not in wanted and _is_made(change, outcomes, refusals)
            ]
    return made


def _without_unknown(
    flow: str, wanted: Mapping[str, Mapping[str, str]], outcomes: Mapping[str, Exception | None]
) -> dict[str, Mapping[str, str]]:
    """Return topics worth another attempt, with one setting less."""
    again: dict[str, Mapping[str, str]] = {}
    for topic, configs in wanted.items():
        found = _UNKNOWN_SETTING.search(str(outcomes[topic] or ""))
        if found and found[1] in configs:
            log.warning("%s: %s is created without %s, which the target does not know", flow, topic, found[1])
            again[topic] = {key: value for key, value in configs.items() if key != found[1]}
    return again


def _is_made(change: CreateTopic, outcomes: Mapping[str, Exception | None], refusals: Refusals) -> bool:
    error = outcomes[change.topic]
    if error is not None and not isinstance(error, TopicExists):
        refusals.take(change.topic, error)
        return False
    if error is None:
        count = counted(change.partitions, "partition")
        said = "%s: %s now has %s"
        state_changed(log, logging.INFO, "topic-created", change.topic, said, refusals.flow, change.topic, count)
    refusals.forget(change.topic)
    return True


async def add_partitions(admin: Admin, changes: Sequence[AddPartitions], refusals: Refusals) -> list[AddPartitions]:
    made = []
    for batch in batches(changes):
        outcomes = await admin.create_partitions({change.topic: change.want for change in batch})
        for change in batch:
            error = outcomes[change.topic]
            if error is None:
                want = counted(change.want, "partition")
                said, about = "%s: %s now has %s, it had %d", (refusals.flow, change.topic)
                state_changed(log, logging.INFO, "partitions-added", change.topic, said, *about, want, change.have)
                refusals.forget(change.topic)
                made.append(change)
            else:
                refusals.take(change.topic, error)
    return made


async def alter_configs(flow: str, admin: Admin, changes: Sequence[AlterConfig]) -> set[str]:
    """Alter settings. Return topics that were refused. Errors are those of
    :func:`connect.kafka.log.topic_admin.alter`."""
    wanted: dict[str, dict[str, str | None]] = defaultdict(dict)
    for change in changes:
        wanted[change.topic][change.key] = change.after
    refused = set()
    for topic, error in (await admin.alter_topic_configs(wanted)).items():
        if error is not None:
            log.warning("%s: topic settings were not altered: %s", flow, error)
            refused.add(topic)
        else:
            configs = wanted[topic].items()
            words = ", ".join(f"{key} = {'default' if value is None else value}" for key, value in configs)
            state_changed(log, logging.INFO, "configs-altered", topic, "%s: altered %s: %s", flow, topic, words)
    return refused
