"""Where partitions begin that have no stored position."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import committed_offsets, group_state
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.settings import MirrorSourceSettings

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Begin:
    """``reset_to`` is ``EARLIEST`` or ``LATEST``; ``group``, where it is not empty, is one of the source's whose
    committed offsets go before it (``initial.offsets.group``)."""

    reset_to: int
    read_committed: bool
    group: str


def begin_of(settings: MirrorSourceSettings) -> Begin:
    reset_to = LATEST if settings.auto_offset_reset == "latest" else EARLIEST
    return Begin(reset_to, settings.read_committed, settings.initial_offsets_group)


async def first_offsets(
    source: Cluster, partitions: Collection[TopicPartition], begin: Begin
) -> dict[TopicPartition, int]:
    """The first source offset to copy of each partition. Raises as :func:`connect.kafka.offsets.list_offsets` and
    :func:`connect.kafka.group_offsets.committed_offsets`."""
    if not partitions:
        return {}
    of_group = await committed_offsets(source, begin.group) if begin.group else {}
    found = {one: of_group[one] for one in partitions if one in of_group}
    for one, offset in found.items():
        log.info("%s begins at source offset %d, where group %s stands", one, offset, begin.group)
    rest = [one for one in partitions if one not in found]
    isolation = READ_COMMITTED if begin.read_committed and begin.reset_to == LATEST else READ_UNCOMMITTED
    for key, offset in (await list_offsets(source, rest, begin.reset_to, isolation) if rest else {}).items():
        found[TopicPartition(*key)] = offset
    return found


async def warn_of_members(source: Cluster, group: str) -> None:
    """Say so where somebody still copies as ``group``. Raises as :func:`connect.kafka.group_offsets.group_state`."""
    members = (await group_state(source, group)).members
    if members:
        log.warning(
            "group %s of initial.offsets.group has %d members on cluster %s, such as %s; what they copy from now on is "
            "copied twice: stop them",
            group,
            len(members),
            source.name,
            members[0],
        )


async def warn_of_left_behind(source: Cluster, ends: Mapping[TopicPartition, int]) -> None:
    """Warn of partitions that have records and begin at their ends (``auto.offset.reset`` = ``latest``).

    At a first start that is what a user asks for. But brokers delete what a group has committed for a topic that is
    deleted (Kafka ``GroupCoordinator.onPartitionsDeleted``), so a recreated topic begins at its end too. ``ends``:
    where partitions without a stored offset begin. Raises as :func:`connect.kafka.offsets.list_offsets`.
    """
    starts = await list_offsets(source, list(ends), EARLIEST) if ends else {}
    behind = sorted(one for one, end in ends.items() if starts[one] < end)
    if behind:
        names = ", ".join(f"{one} at offset {ends[one]}" for one in behind[:_MOST_NAMED])
        log.warning(
            "cluster %s: no offset is stored for %d partitions that have records, and auto.offset.reset = latest "
            "leaves these records out: %s%s; with earliest they would be copied",
            source.name,
            len(behind),
            names,
            f" and {len(behind) - _MOST_NAMED} more" if len(behind) > _MOST_NAMED else "",
        )
