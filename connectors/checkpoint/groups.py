"""Which groups of the source get checkpoints (Kafka's ``MirrorCheckpointConnector.findConsumerGroups``)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.group_offsets import SHARE, STREAMS, GroupListing, committed_offsets, list_groups
from connectors.checkpoint.settings import CheckpointSettings

log = logging.getLogger(__name__)

_WHY_LEFT: Final = {
    SHARE: "a share group has no offset that could be translated: its records are acknowledged one by one",
    STREAMS: "a streams group keeps its state beside its offsets, which a mirror does not carry",
}
#: Between the groups of a task, as in Java's config.
_SEPARATOR: Final = ","
_WHY_SEPARATED: Final = (
    "tasks are told their groups in one list, with commas between them, where its name would be that of others; "
    "heliograph failover moves it, while its cluster answers"
)


class GroupFinder:
    """Looks at the source's groups, and says once of each kind that is left alone why."""

    def __init__(self, settings: CheckpointSettings, source: Cluster) -> None:
        self._settings = settings
        self._source = source
        self._told: set[str] = set()

    async def find(self) -> list[str]:
        """Groups that the filter takes and that have an offset in a topic that is mirrored, in order.

        Raises as :func:`connect.kafka.group_offsets.committed`: one group that cannot be asked for fails the look, or
        its checkpoints would end without a word.
        """
        listed = await list_groups(self._source)
        taken = {name: one for name, one in listed.items() if self._settings.group_filter.should_replicate_group(name)}
        self._tell(taken)

        async def has_offsets(group: str) -> bool:
            stored = await committed_offsets(self._source, group)
            return any(self._settings.topic_filter.should_replicate_topic(topic) for topic, _ in stored)

        groups = sorted(name for name, one in taken.items() if one.has_offsets and not _why_left(name, one))
        kept = await gather_limited(has_offsets, groups)
        return [group for group, is_kept in zip(groups, kept, strict=True) if is_kept]

    def _tell(self, groups: Mapping[str, GroupListing]) -> None:
        for name, one in groups.items():
            if (why := _why_left(name, one)) and name not in self._told:
                self._told.add(name)
                log.info("%s: group %s gets no checkpoints: %s", self._settings.flow, name, why)


def _why_left(name: str, one: GroupListing) -> str:
    return _WHY_LEFT.get(one.kind, _WHY_SEPARATED if _SEPARATOR in name and one.has_offsets else "")


def split(groups: Sequence[str], max_tasks: int) -> list[Sequence[str]]:
    """One run of groups a task, the first ones longer by one where they do not come out even (``ConnectorUtils``)."""
    tasks = min(max_tasks, len(groups))
    if not tasks:
        return []
    each, more = divmod(len(groups), tasks)
    begins = [index * each + min(index, more) for index in range(tasks + 1)]
    return [groups[begin:end] for begin, end in itertools.pairwise(begins)]


def encode(groups: Collection[str]) -> str:
    """``task.assigned.groups``, of names without commas."""
    return _SEPARATOR.join(groups)


def decode(assigned: str) -> list[str]:
    return [group for group in assigned.split(_SEPARATOR) if group]
