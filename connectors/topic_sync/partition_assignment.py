"""Select the topics that a flow mirrors, assign their partitions to tasks, and find the first offset of those without a
stored position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from connect.core.wording import named
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.committed_offsets import committed_offsets, group_state
from connect.kafka.log.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.types import TopicPartition

_READABLE: Final = 0
#: The key of a task's config that names its partitions.
ASSIGNED_PARTITIONS: Final = "task.assigned.partitions"


def selected(takes: Callable[[str], bool], source: Mapping[str, TopicMetadata]) -> list[TopicMetadata]:
    """Return the source topics to mirror, in a stable order."""
    return [
        topic
        for name, topic in sorted(source.items())
        if topic.error_code == _READABLE and topic.partitions and takes(name)
    ]


def assign(
    partitions: Sequence[TopicPartition], tasks_max: int, before: Sequence[Collection[TopicPartition]] = ()
) -> list[list[TopicPartition]]:
    """Assign ``partitions`` to at most ``tasks_max`` tasks, whose counts differ by at most one. Round-robin (Kafka
    ``MirrorSourceConnector.taskConfigs``) if nothing was assigned ``before``. Otherwise as few partitions as possible
    change their task; each task has its own in the order of ``partitions``."""
    tasks = min(tasks_max, len(partitions))
    wanted = set(partitions)
    kept = _kept(wanted, [*before[:tasks], *[()] * (tasks - len(before))])
    if not any(kept):
        return [list(partitions[index::tasks]) for index in range(tasks)]
    least, more = divmod(len(partitions), tasks)
    # The fullest tasks get the extra partitions; otherwise they would have to give some away.
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
    """Return what each task has that is still wanted; if two have the same partition, the first keeps it."""
    seen: set[TopicPartition] = set()
    kept = []
    for own in before:
        mine = {partition for partition in own if partition in wanted} - seen
        seen |= mine
        kept.append(mine)
    return kept


def assigned_before(configs: Sequence[Mapping[str, str]]) -> list[list[TopicPartition]]:
    """Return the partitions of each task by its present config; none if a config has none that can be read."""
    found = []
    for config in configs:
        try:
            found.append(decode_partitions(config[ASSIGNED_PARTITIONS]))
        except (KeyError, ValueError):
            found.append([])
    return found


def encode_partitions(partitions: Sequence[TopicPartition]) -> str:
    """Return ``task.assigned.partitions`` as Java writes it: ``t0-0,t0-3``."""
    return ",".join(str(partition) for partition in partitions)


def decode_partitions(text: str) -> list[TopicPartition]:
    """Decode it; a partition's number follows the last dash (Kafka ``MirrorUtils.decodeTopicPartition``)."""
    parts = (part.strip().rpartition("-") for part in text.split(","))
    return [TopicPartition(topic, int(index)) for topic, _, index in parts]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where new partitions begin: at offsets of ``group`` (``initial.offsets.group``), else ``reset_to``."""

    reset_to: int
    read_committed: bool
    group: str


def begin_of(settings: MirrorSourceSettings) -> Begin:
    reset_to = LATEST if settings.auto_offset_reset == "latest" else EARLIEST
    return Begin(reset_to, settings.read_committed, settings.initial_offsets_group)


async def first_offsets(
    source: Cluster, partitions: Collection[TopicPartition], begin: Begin
) -> dict[TopicPartition, int]:
    """Return the first source offset to copy of each partition. Errors are those of
    :func:`connect.kafka.log.offsets.list_offsets` and :func:`connect.kafka.log.committed_offsets.committed_offsets`."""
    if not partitions:
        return {}
    of_group = await committed_offsets(source, begin.group) if begin.group else {}
    found = {one: of_group[one] for one in partitions if one in of_group}
    for one, offset in found.items():
        log.info("%s begins at source offset %d, which group %s has committed", one, offset, begin.group)
    rest = [one for one in partitions if one not in found]
    isolation = READ_COMMITTED if begin.read_committed and begin.reset_to == LATEST else READ_UNCOMMITTED
    reset = await list_offsets(source, rest, begin.reset_to, isolation) if rest else {}
    return found | {TopicPartition(*key): offset for key, offset in reset.items()}


async def warn_of_members(source: Cluster, group: str) -> None:
    """Warn if consumers still copy as ``group``. Errors are those of
    :func:`connect.kafka.log.committed_offsets.group_state`."""
    members = (await group_state(source, group)).members
    if members:
        log.warning(
            "group %s of initial.offsets.group has %d members on cluster %s, such as %s; records that they copy from "
            "now on are copied twice: stop them",
            group,
            len(members),
            source.name,
            members[0],
        )


async def warn_of_skipped_backlog(source: Cluster, ends: Mapping[TopicPartition, int]) -> None:
    """Warn of partitions that have records and begin at their ends (``auto.offset.reset`` = ``latest``). At a first
    start the user asks for that. But brokers delete a group's committed offsets of a deleted topic (Kafka
    ``GroupCoordinator.onPartitionsDeleted``), so a recreated topic begins at its end too. ``ends``: where partitions
    without a stored offset begin. Errors are those of :func:`connect.kafka.log.offsets.list_offsets`."""
    starts = await list_offsets(source, list(ends), EARLIEST) if ends else {}
    behind = sorted(one for one, end in ends.items() if starts[one] < end)
    if behind:
        log.warning(
            "cluster %s: no offset is stored for %d partitions that have records, and auto.offset.reset = latest skips "
            "these records: %s; with earliest they would be copied",
            source.name,
            len(behind),
            named(f"{one} at offset {ends[one]}" for one in behind),
        )
