"""Which target partition each source partition is copied to, from what both clusters report now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.topic_configs import perhaps_compacted
from connectors.dataplane import verdicts
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import DEFAULT_MAX_MESSAGE_BYTES, ONE_WAY, TopicPartition, Ways
from connectors.source.ledger import Entry, Pair
from connectors.source.reach import let_wait
from connectors.source.store import Start


class Pairing:
    """Of one task."""

    def __init__(
        self,
        remote_topic: Callable[[str], str],
        clusters: tuple[Cluster, Cluster],
        admin: Admin,
        ways: Callable[[str], Ways] = lambda _: ONE_WAY,
        *,
        is_countable: bool = True,
    ) -> None:
        """``is_countable``: whether each record of the source becomes one record of the target."""
        self._is_countable = is_countable
        self._remote_topic = remote_topic
        self._source, self._target = clusters
        self._admin = admin
        self._ways = ways

    async def pairs(self, partitions: Sequence[TopicPartition]) -> list[Pair]:
        """The pair of every partition that both clusters know now. Errors as those of the clusters."""
        source = await self._source_topics(partitions)
        names = {topic: self._remote_topic(topic) for topic in {partition.topic for partition in partitions}}
        target = (await self._target.metadata(set(names.values()))).topics
        configs = await self._admin.describe_topic_configs(set(names.values()))
        sizes = {name: int(size) for name, entries in configs.items() if (size := entries.get("max.message.bytes"))}
        compacted = {name for name, entries in configs.items() if "compact" in (entries.get("cleanup.policy") or "")}
        thinned = await perhaps_compacted(self._source, names) if self._is_countable else names
        found = []
        for partition in partitions:
            name = names[partition.topic]
            here, there = source.get(partition.topic), target.get(name)
            if here and there and partition.partition in here.partitions and partition.partition in there.partitions:
                remote, largest = TopicPartition(name, partition.partition), sizes.get(name, DEFAULT_MAX_MESSAGE_BYTES)
                ways, is_countable = self._ways(partition.topic), partition.topic not in thinned
                kinds = is_countable, name in compacted
                found.append(Pair(partition, here.topic_id, remote, there.topic_id, largest, ways, *kinds))
        return found

    async def renew(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> list[Entry]:
        """Pair again the entries whose topics may have been recreated. Return the entries that can be taken over; of
        the others some are stopped, and those without a partition at a cluster wait.

        Errors as those of the clusters; RetriableError if all entries would wait.
        """
        lacking = await self._pair_again(await self._outdated(entries), starts)
        waiting = await self._wait_for_targets(lacking, starts)
        return let_wait([entry for entry in entries if not entry.is_stopped], waiting)

    async def _source_topics(self, partitions: Iterable[TopicPartition]) -> Mapping[str, TopicMetadata]:
        return (await self._source.metadata({partition.topic for partition in partitions})).topics

    async def _pair_again(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> list[Entry]:
        """Stop entries whose source was deleted. Return those whose target does not exist or lacks the partition, and
        those of which nothing was copied, so that nothing is lost."""
        if not entries:
            return []
        found = {pair.source: pair for pair in await self.pairs([entry.pair.source for entry in entries])}
        late = [entry for entry in entries if entry.pair.source not in found]
        here: Mapping[str, TopicMetadata] = {}
        if late:
            # A broker that lags may not have heard of it yet.
            here = await known_topics(self._source, {entry.pair.source.topic for entry in late})
            found |= {pair.source: pair for pair in await self.pairs([entry.pair.source for entry in late])}
        lacking = []
        for entry in entries:
            source = entry.pair.source
            topic = here.get(source.topic)
            if source in found:
                entry.pair = found[source]
            elif topic is None or (topic.partitions and source.partition not in topic.partitions):
                if not _stop(entry, "source", f"{source.topic} with partition {source.partition}", starts[source]):
                    lacking.append(entry)
            else:
                entry.pair = replace(entry.pair, source_topic_id=topic.topic_id)
                lacking.append(entry)
        return lacking

    async def _wait_for_targets(
        self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, str]:
        """Stop entries whose target topic was deleted. Return why the others wait."""
        if not entries:
            return {}
        there = await known_topics(self._target, {entry.pair.target.topic for entry in entries})
        waiting = {}
        for entry in entries:
            source, target = entry.pair.source, entry.pair.target
            if target.topic in there or not _stop(entry, "target", target.topic, starts[source]):
                waiting[source] = f"a cluster does not know {source}, or target {target}, now"
        return waiting

    async def _outdated(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries that continue after a gap, entries that wait, and entries whose source topic was recreated since
        they were paired: under its old id a slice would find the gap again, with wrong offsets."""
        asked = [entry for entry in entries if not entry.is_stopped and entry.pair.source_topic_id]
        topics = await self._source_topics([entry.pair.source for entry in asked]) if asked else {}
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id and topic.partitions}
        return [
            entry
            for entry in entries
            if entry.is_healing
            or (entry.is_waiting and entry.pair.source_topic_id)
            or (
                not entry.is_stopped
                and ids.get(entry.pair.source.topic, entry.pair.source_topic_id) != entry.pair.source_topic_id
            )
        ]


def _stop(entry: Entry, side: str, topic: str, start: Start) -> bool:
    """Whether an entry is stopped, as its topic is gone; one of which nothing was copied loses nothing and is not."""
    if entry.position is None and not start.moved:
        entry.position = start.position  # by which it is known when its topic is there again
    if entry.position is None:
        return False
    gone = verdicts.deleted(side, topic, entry.pair.source, entry.position.next_source_offset)
    entry.stop(gone.reason, gap=gone.gap)
    return True
