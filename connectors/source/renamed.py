"""Remote topics of source topics that were made anew, under ``on.topic.recreated`` = ``new-remote-topic``.

Such a remote topic is named after the id of its source topic: whoever asks, at whichever time, comes to the same name,
and that the topic is there says that it is the one. So nothing about it has to be stored or agreed upon.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final
from uuid import UUID

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.policy import LONGEST_NAME
from connectors.source.store import Start

_ID_DIGITS: Final = 8


def name_of_new(remote: str, topic_id: UUID) -> str:
    """What the remote topic of a source topic is called that was made anew and has this id. Where Kafka allows no name
    so long, ``remote`` is cut, and a digest of it stands before the id: several connectors make different names of one
    source topic, which may begin alike."""
    suffix = f".{topic_id.hex[:_ID_DIGITS]}"
    if len(remote) + len(suffix) > LONGEST_NAME:
        suffix = f".{sha256(remote.encode()).hexdigest()[:_ID_DIGITS]}{suffix}"
    return remote[: LONGEST_NAME - len(suffix)] + suffix


def is_copy_of(remote: str, name: str) -> bool:
    """Whether ``name`` is ``remote``, or what :func:`name_of_new` makes of it with some id."""
    digits = name.rpartition(".")[2]
    if name == remote or not re.fullmatch(rf"[0-9a-f]{{{_ID_DIGITS}}}", digits):
        return name == remote
    return name_of_new(remote, UUID(digits.ljust(32, "0"))) == name


def names_of_new(remote_topic: Callable[[str], str], topics: Iterable[TopicMetadata]) -> dict[str, str]:
    """By source topic, what :func:`name_of_new` calls it; those without an id, or a remote name, are left out."""
    found = {}
    for topic in topics:
        if topic.topic_id:
            try:
                found[topic.name] = name_of_new(remote_topic(topic.name), topic.topic_id)
            except PermanentError:
                continue  # the policy has no name for it, and says why where topics are named
    return found


async def renamed_topics(
    remote_topic: Callable[[str], str], topics: Iterable[TopicMetadata], target: Cluster
) -> dict[str, str]:
    """Those of :func:`names_of_new` that the target has. Errors as those of the cluster."""
    names = names_of_new(remote_topic, topics)
    there = (await target.metadata(set(names.values()))).topics if names else {}
    return {topic: name for topic, name in names.items() if is_there(there.get(name))}


def is_of_another(start: Start, topic_id: UUID | None) -> bool:
    """Whether what is stored of a partition speaks of another source topic than the one with this id."""
    before = start.position.source_topic_id if start.position and not start.moved else None
    return topic_id is not None and before is not None and before != topic_id


def is_there(topic: TopicMetadata | None) -> bool:
    return topic is not None and bool(topic.partitions)
