"""Which checkpoints are worth writing (Kafka's ``MirrorCheckpointTask.checkpointIsMoreRecent``). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from connectors.dataplane.plan import TopicPartition
from connectors.mirror_records import Checkpoint


class Found(NamedTuple):
    """A checkpoint as it is translated now; ``by_map``: by the offset map, which knows better than what was written.
    ``topic_id`` is the remote topic's, ``source_id`` that of its source; None if it is not known."""

    checkpoint: Checkpoint
    by_map: bool
    topic_id: UUID | None = None
    source_id: UUID | None = None


class Checkpoints:
    """The last checkpoint of every group and remote partition, of the groups that matter here."""

    def __init__(self, groups: Collection[str]) -> None:
        self._last: dict[str, dict[TopicPartition, Checkpoint]] = {group: {} for group in groups}
        #: By remote partition the id of the topic that the last look was at.
        self._standing: dict[str, dict[TopicPartition, UUID | None]] = {group: {} for group in groups}

    def take(self, checkpoint: Checkpoint) -> None:
        """One that was written, by whomever; later ones win."""
        if checkpoint.group in self._last:
            self._last[checkpoint.group][_place(checkpoint)] = checkpoint

    def forget(self) -> None:
        """What was taken is not to be trusted."""
        for known in self._last.values():
            known.clear()

    def look(self, group: str, found: Collection[Found]) -> list[Checkpoint]:
        """All that is known of a group now. Returns, and takes, what says more than what was written: of a group that
        went on, or that was wound back at the source; by the map, whatever differs."""
        newer = [one.checkpoint for one in found if self._is_newer(one)]
        for checkpoint in newer:
            self.take(checkpoint)
        self._standing[group] = {_place(one.checkpoint): one.topic_id for one in found}
        return newer

    def standing(self, group: str) -> dict[TopicPartition, Checkpoint]:
        """By remote partition: the checkpoints of the last look. Others may be of a topic that was made anew since, and
        lead behind records that nobody has read."""
        return {place: one for place, one in self._last[group].items() if place in self._standing[group]}

    def topic_ids(self, group: str) -> dict[str, UUID | None]:
        """Of the topics of :meth:`standing`, as the last look saw them: a look may be long ago."""
        return {place.topic: topic_id for place, topic_id in self._standing[group].items()}

    def _is_newer(self, found: Found) -> bool:
        checkpoint = found.checkpoint
        last = self._last[checkpoint.group].get(_place(checkpoint))
        if last is None or checkpoint.upstream_offset < last.upstream_offset:
            return True
        if found.by_map:
            return checkpoint.downstream_offset != last.downstream_offset
        return checkpoint.downstream_offset > last.downstream_offset


def _place(checkpoint: Checkpoint) -> TopicPartition:
    return TopicPartition(checkpoint.topic, checkpoint.partition)
