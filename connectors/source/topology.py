"""Which topics a flow mirrors, and what is missing at the target: two clusters' metadata in, changes out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connect.kafka.cluster import TopicMetadata
from connectors.dataplane.plan import DEFAULT_MAX_MESSAGE_BYTES, TopicPartition
from connectors.source.ledger import Pair

_READABLE: Final = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What the target lacks: topics to ``create`` and to ``grow``, each (remote name, partitions)."""

    create: tuple[tuple[str, int], ...] = ()
    grow: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.create or self.grow)


def selected(takes: Callable[[str], bool], source: Mapping[str, TopicMetadata]) -> list[TopicMetadata]:
    """The source topics to mirror, in a stable order."""
    return [
        topic
        for name, topic in sorted(source.items())
        if topic.error_code == _READABLE and topic.partitions and takes(name)
    ]


def missing(
    remote_name: Callable[[str], str], topics: Sequence[TopicMetadata], target: Mapping[str, TopicMetadata]
) -> Changes:
    """Remote topics to make and partitions to add; remote topics are never deleted or shrunk."""
    create, grow = [], []
    for topic in topics:
        name, wanted = remote_name(topic.name), len(topic.partitions)
        remote = target.get(name)
        if remote is None or (remote.error_code != _READABLE and not remote.partitions):
            create.append((name, wanted))
        elif len(remote.partitions) < wanted:
            grow.append((name, wanted))
    return Changes(tuple(create), tuple(grow))


def assign(partitions: Sequence[TopicPartition], tasks_max: int) -> list[list[TopicPartition]]:
    """Round-robin over at most ``tasks_max`` tasks (Kafka ``MirrorSourceConnector.taskConfigs``)."""
    tasks = min(tasks_max, len(partitions))
    return [list(partitions[index::tasks]) for index in range(tasks)]


def encode_partitions(partitions: Sequence[TopicPartition]) -> str:
    """``task.assigned.partitions`` as Java writes it: ``t0-0,t0-3``."""
    return ",".join(str(partition) for partition in partitions)


def decode_partitions(text: str) -> list[TopicPartition]:
    """The reverse; a partition's number stands behind the last dash (Kafka ``MirrorUtils.decodeTopicPartition``)."""
    found = []
    for part in text.split(","):
        topic, _, index = part.strip().rpartition("-")
        found.append(TopicPartition(topic, int(index)))
    return found


def pair_up(
    remote_name: Callable[[str], str],
    partitions: Sequence[TopicPartition],
    source: Mapping[str, TopicMetadata],
    target: Mapping[str, TopicMetadata],
    max_message_bytes: Mapping[str, int],
) -> list[Pair]:
    """The pair of every partition that both clusters know now, in the order given."""
    found = []
    for partition in partitions:
        name = remote_name(partition.topic)
        here, there = source.get(partition.topic), target.get(name)
        if here and there and partition.partition in here.partitions and partition.partition in there.partitions:
            found.append(
                Pair(
                    partition,
                    here.topic_id,
                    TopicPartition(name, partition.partition),
                    there.topic_id,
                    max_message_bytes.get(name, DEFAULT_MAX_MESSAGE_BYTES),
                )
            )
    return found
