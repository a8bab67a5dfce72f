"""Which target partition each source partition is copied to, from what both clusters report now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.topic_configs import perhaps_compacted
from connectors.dataplane.plan import DEFAULT_MAX_MESSAGE_BYTES, ONE_WAY, TopicPartition, Ways
from connectors.source.ledger import Entry, Pair

#: So many partitions are paired before others of the loop have their turn; each takes some 5 us.
_AT_ONCE: Final = 500


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
        if not partitions:
            return []
        source = (await self._source.metadata({partition.topic for partition in partitions})).topics
        names = {topic: self._remote_topic(topic) for topic in {partition.topic for partition in partitions}}
        target = (await self._target.metadata(set(names.values()))).topics
        configs = await self._admin.describe_topic_configs(set(names.values()))
        sizes = {name: int(size) for name, entries in configs.items() if (size := entries.get("max.message.bytes"))}
        compacted = {name for name, entries in configs.items() if "compact" in (entries.get("cleanup.policy") or "")}
        thinned = await perhaps_compacted(self._source, names) if self._is_countable else names
        found = []
        async for partition in in_turns(partitions, _AT_ONCE):
            name = names[partition.topic]
            here, there = source.get(partition.topic), target.get(name)
            if here and there and partition.partition in here.partitions and partition.partition in there.partitions:
                remote, largest = TopicPartition(name, partition.partition), sizes.get(name, DEFAULT_MAX_MESSAGE_BYTES)
                ways, is_countable = self._ways(partition.topic), partition.topic not in thinned
                kinds = is_countable, name in compacted
                found.append(Pair(partition, here.topic_id, remote, there.topic_id, largest, ways, *kinds))
        return found

    async def renew(self, entries: Sequence[Entry]) -> None:
        """Pair the entries again that are to be taken over after a gap or after waiting: their topics may have been
        recreated. Entries that a cluster does not know keep their pairs, and all do where topics have no ids. Errors as
        those of the clusters."""
        again = [entry for entry in entries if entry.holds_back and entry.pair.source_topic_id]
        found = {pair.source: pair for pair in await self.pairs([entry.pair.source for entry in again])}
        for entry in again:
            entry.pair = found.get(entry.pair.source, entry.pair)
