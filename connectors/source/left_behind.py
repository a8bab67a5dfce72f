"""Says so where a copy begins at the end of a log that has records (``auto.offset.reset`` = ``latest``).

It is what a user asks for at a first start. But brokers delete what a group has committed for a topic that is deleted
(Kafka ``GroupCoordinator.onPartitionsDeleted``): of one that was made anew nothing is known either, and it begins so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, list_offsets
from connectors.dataplane.plan import TopicPartition

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5


async def warn_of_left_behind(source: Cluster, ends: Mapping[TopicPartition, int]) -> None:
    """``ends``: where partitions begin that have no stored offset. Raises as
    :func:`connect.kafka.offsets.list_offsets`."""
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
