"""Which topics a flow mirrors, and which task copies what. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from connect.kafka.cluster import TopicMetadata
from connectors.dataplane.plan import TopicPartition

_READABLE: Final = 0
#: The key of a task's config that names its partitions.
ASSIGNED_PARTITIONS: Final = "task.assigned.partitions"


def selected(takes: Callable[[str], bool], source: Mapping[str, TopicMetadata]) -> list[TopicMetadata]:
    """The source topics to mirror, in a stable order."""
    return [
        topic
        for name, topic in sorted(source.items())
        if topic.error_code == _READABLE and topic.partitions and takes(name)
    ]


def assign(
    partitions: Sequence[TopicPartition], tasks_max: int, before: Sequence[Collection[TopicPartition]] = ()
) -> list[list[TopicPartition]]:
    """Share ``partitions`` out over at most ``tasks_max`` tasks, whose counts differ by one at most.

    Round-robin (Kafka ``MirrorSourceConnector.taskConfigs``) where nothing was assigned ``before``. Else as few
    partitions as possible change their task; each task has its own in the order of ``partitions``.
    """
    tasks = min(tasks_max, len(partitions))
    wanted = set(partitions)
    kept = _kept(wanted, [*before[:tasks], *[()] * (tasks - len(before))])
    if not any(kept):
        return [list(partitions[index::tasks]) for index in range(tasks)]
    least, more = divmod(len(partitions), tasks)
    # The fullest may have one more, for it would have to give that away.
    fullest = sorted(range(tasks), key=lambda task: (-len(kept[task]), task))
    quotas = {task: least + (rank < more) for rank, task in enumerate(fullest)}
    order = {partition: index for index, partition in enumerate(partitions)}
    shares = [sorted(own, key=order.__getitem__)[: quotas[task]] for task, own in enumerate(kept)]
    placed = {partition for share in shares for partition in share}
    left = iter([partition for partition in partitions if partition not in placed])
    for task, share in enumerate(shares):
        share.extend(islice(left, quotas[task] - len(share)))
        share.sort(key=order.__getitem__)
    return shares


def _kept(
    wanted: Collection[TopicPartition], before: Sequence[Collection[TopicPartition]]
) -> list[set[TopicPartition]]:
    """What each task has that is still wanted; of two that have the same the first keeps it."""
    seen: set[TopicPartition] = set()
    kept = []
    for own in before:
        mine = {partition for partition in own if partition in wanted} - seen
        seen |= mine
        kept.append(mine)
    return kept


def assigned_before(configs: Sequence[Mapping[str, str]]) -> list[list[TopicPartition]]:
    """The partitions of each task by its present config; none where a config has none that can be read."""
    found = []
    for config in configs:
        try:
            found.append(decode_partitions(config[ASSIGNED_PARTITIONS]))
        except (KeyError, ValueError):
            found.append([])
    return found


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
