"""Which target partition each source partition is copied to, as both clusters tell of them now: that of its remote
topic, or of the one of its own that a source topic made anew has (:mod:`connectors.source.renamed`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import HeliographError, RetriableError
from connect.kafka.admin import Admin, NewTopic, TopicExists
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.topic_configs import describe
from connectors.dataplane import verdicts
from connectors.dataplane.plan import ONE_WAY, TopicPartition, Ways
from connectors.filters import DefaultConfigPropertyFilter
from connectors.gaps import OnTopicRecreated
from connectors.source.ledger import Entry, Pair
from connectors.source.remote_configs import configs_of_new
from connectors.source.renamed import is_of_another, is_there, name_of_new, names_of_new
from connectors.source.store import Start
from connectors.source.topology import pair_up

log = logging.getLogger(__name__)

_APPEAR_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.1


def _every_property() -> ConfigPropertyFilter:
    return DefaultConfigPropertyFilter((), source_defaults=False)


@dataclass(frozen=True, slots=True)
class NewTopics:
    """How remote topics are made: ``properties`` are those of the source's settings that they get."""

    replication_factor: int = -1
    properties: ConfigPropertyFilter = field(default_factory=_every_property)


class Pairing:
    """Of one task."""

    def __init__(
        self,
        label: str,
        remote_topic: Callable[[str], str],
        clusters: tuple[Cluster, Cluster],
        admin: Admin,
        on_topic_recreated: OnTopicRecreated,
        new_topics: NewTopics,
        ways: Callable[[str], Ways] = lambda _: ONE_WAY,
    ) -> None:
        self._label = label
        self._remote_topic = remote_topic
        self._source, self._target = clusters
        self._admin = admin
        self._names_new = on_topic_recreated is OnTopicRecreated.NEW_REMOTE_TOPIC
        self._new_topics = new_topics
        self._ways = ways

    async def pairs(self, partitions: Sequence[TopicPartition]) -> list[Pair]:
        """The pair of every partition that both clusters know now. Errors as those of the clusters."""
        source = await self._source_topics(partitions)
        base = {topic: self._remote_topic(topic) for topic in {partition.topic for partition in partitions}}
        of_new = names_of_new(self._remote_topic, source.values()) if self._names_new else {}
        target = (await self._target.metadata({*base.values(), *of_new.values()})).topics
        names = {topic: of_new[topic] if is_there(target.get(of_new.get(topic, ""))) else base[topic] for topic in base}
        configs = await self._admin.describe_topic_configs(set(names.values()))
        sizes = {name: int(size) for name, entries in configs.items() if (size := entries.get("max.message.bytes"))}
        return pair_up(names.__getitem__, partitions, source, target, sizes, self._ways)

    async def renew(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> None:
        """Give entries the topics that are there now: those that go on behind a gap, and those whose source topic was
        made anew and gets a remote topic of its own. Errors as those of the clusters, RetriableError where it does not
        appear."""
        await self._pair_anew(await self._outdated(entries))
        if not self._names_new:
            return
        anew = [entry for entry in entries if not entry.is_stopped and self._is_of_another(entry, starts)]
        if anew:
            await self._make(await self._source_topics([entry.pair.source for entry in anew]))
            await self._pair_anew(anew)

    async def _source_topics(self, partitions: Iterable[TopicPartition]) -> Mapping[str, TopicMetadata]:
        return (await self._source.metadata({partition.topic for partition in partitions})).topics

    async def _pair_anew(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        found = {pair.source: pair for pair in await self.pairs([entry.pair.source for entry in entries])}
        for entry in entries:
            source = entry.pair.source
            if source in found:
                entry.pair = found[source]
            else:
                position = entry.position.next_source_offset if entry.position else 0
                gone = verdicts.deleted("source", f"{source.topic} with partition {source.partition}", source, position)
                entry.stop(gone.reason, gap=gone.gap)

    async def _outdated(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that go on behind a gap, and those whose source topic is another one than when they were paired: under
        its old id a slice would meet the gap once more, and its record would name what came since."""
        asked = [entry for entry in entries if not entry.is_stopped and entry.pair.source_topic_id]
        topics = await self._source_topics([entry.pair.source for entry in asked]) if asked else {}
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id and topic.partitions}
        return [
            entry
            for entry in entries
            if entry.is_healing
            or (
                not entry.is_stopped
                and ids.get(entry.pair.source.topic, entry.pair.source_topic_id) != entry.pair.source_topic_id
            )
        ]

    def _is_of_another(self, entry: Entry, starts: Mapping[TopicPartition, Start]) -> bool:
        """Whether an entry's position speaks of a source topic that is gone, and its target is still that one's."""
        topic_id = entry.pair.source_topic_id
        if topic_id is None or not is_of_another(starts[entry.pair.source], topic_id):
            return False
        return entry.pair.target.topic != name_of_new(self._remote_topic(entry.pair.source.topic), topic_id)

    async def _make(self, topics: Mapping[str, TopicMetadata]) -> None:
        names = names_of_new(self._remote_topic, topics.values())
        configs = await self._configs_of_new(names)
        made = await self._admin.create_topics(
            NewTopic(name, len(topics[topic].partitions), self._new_topics.replication_factor, configs[topic])
            for topic, name in names.items()
        )
        for name, error in made.items():
            if error is None:
                log.info("%s: %s is made for a source topic that was made anew", self._label, name)
            elif not isinstance(error, TopicExists):
                raise error
        await self._until_there(names)

    async def _configs_of_new(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings to make remote topics with. Without them a compacted topic would lose records."""
        found = {}
        for topic, configs in (await describe(self._source, list(topics))).items():
            if isinstance(configs, HeliographError):
                raise RetriableError(f"no remote topic is made for {topic}: {configs}")
            found[topic] = configs_of_new(configs, self._new_topics.properties)
        return found

    async def _until_there(self, names: Mapping[str, str]) -> None:
        deadline = asyncio.get_running_loop().time() + _APPEAR_TIMEOUT_S
        while True:
            there = (await self._target.metadata(set(names.values()))).topics
            late = [name for name in names.values() if not is_there(there.get(name))]
            if not late:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise RetriableError(f"the target does not show {', '.join(late)} yet")
            await asyncio.sleep(_LOOK_S)
