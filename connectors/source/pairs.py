"""Which target partition each source partition is copied to, as both clusters tell of them now: that of its remote
topic, or of the one of its own that a source topic made anew has (:mod:`connectors.source.renamed`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import HeliographError, RetriableError, SecurityError
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.topic_configs import describe
from connectors.changes import CreateTopic
from connectors.dataplane import codes, verdicts
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import ONE_WAY, TopicPartition, Ways
from connectors.filters import DefaultConfigPropertyFilter
from connectors.gaps import OnTopicRecreated
from connectors.source.applying import Refusals, make_topics
from connectors.source.ledger import Entry, Pair
from connectors.source.remote_configs import configs_of_new
from connectors.source.renamed import is_of_another, is_there, name_of_new, names_of_new
from connectors.source.store import Start
from connectors.source.topology import pair_up

log = logging.getLogger(__name__)

_APPEAR_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.1
#: So many reasons are given where every partition waits.
_MOST_NAMED: Final = 5


def _every_property() -> ConfigPropertyFilter:
    return DefaultConfigPropertyFilter((), source_defaults=False)


@dataclass(frozen=True, slots=True)
class NewTopics:
    """How remote topics are made: ``properties`` are those of the source's settings that they get."""

    replication_factor: int = -1
    properties: ConfigPropertyFilter = field(default_factory=_every_property)


class _Refused(Refusals):
    """What the target refuses of remote topics for source topics that were made anew, each said once."""

    def __init__(self, flow: str) -> None:
        super().__init__(flow)
        self.reasons: dict[str, str] = {}

    def take(self, topic: str, error: Exception) -> None:
        """Raises it where a right is missing."""
        if isinstance(error, SecurityError):
            raise error
        super().take(topic, error)
        self.reasons[topic] = str(error)


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
        self._refused = _Refused(label)

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

    async def renew(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> list[Entry]:
        """Give entries the topics that are there now: those that go on behind a gap, and those whose source topic was
        made anew and gets a remote topic of its own. Returns those that can be taken over; of the others some are
        stopped, and those that a cluster has no partition for wait.

        Errors as those of the clusters, SecurityError where a right is missing, RetriableError where all entries would
        wait.
        """
        outdated = await self._outdated(entries, starts)
        lacking = {entry.pair.source: entry for entry in await self._pair_anew(outdated, starts)}
        going = [entry for entry in entries if not entry.is_stopped] if self._names_new else []
        anew = {entry.pair.source: entry for entry in going if self._needs_own(entry, starts)}
        waiting = await self._move(anew, starts) if anew else {}
        lacking |= {entry.pair.source: entry for entry in going if self._has_strayed(entry, starts)}
        waiting |= await self._told_lacking([lacking[source] for source in lacking if source not in anew], starts)
        return _left_to_wait([entry for entry in entries if not entry.is_stopped], waiting)

    async def _move(
        self, anew: Mapping[TopicPartition, Entry], starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, str]:
        """Gives entries the remote topics of their own, which are made where they are not there; why others wait.

        Any broker may lag. Where it tells of the topics from before, an entry would be paired with the remote topic of
        the source topic that is gone, and its successor's records would follow that one's.
        """
        ids = {source.topic: entry.pair.source_topic_id for source, entry in anew.items()}
        own = {source: self._own_target(entry) for source, entry in anew.items()}
        told = await self._source_topics(anew)
        refused = await self._make({name: topic for name, topic in told.items() if topic.topic_id == ids[name]})
        waiting = {source: refused[source.topic] for source in anew if source.topic in refused}
        left = [entry for source, entry in anew.items() if source not in waiting]
        await self._pair_anew(left, starts)
        late = [entry.pair for entry in left if not entry.is_stopped and entry.pair.target != own[entry.pair.source]]
        return waiting | {
            pair.source: f"a cluster does not show {pair.source}, or target {own[pair.source]}, yet" for pair in late
        }

    async def _source_topics(self, partitions: Iterable[TopicPartition]) -> Mapping[str, TopicMetadata]:
        return (await self._source.metadata({partition.topic for partition in partitions})).topics

    async def _pair_anew(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> list[Entry]:
        """Stops entries whose source is gone; returns those whose target is not there, or lacks the partition, and
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

    async def _told_lacking(
        self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, str]:
        """Stops entries whose target is gone; why the others wait for theirs."""
        if not entries:
            return {}
        targets = {
            entry.pair.source: self._own_target(entry) if self._has_strayed(entry, starts) else entry.pair.target
            for entry in entries
        }
        there = await known_topics(self._target, {target.topic for target in targets.values()})
        waiting = {}
        for entry in entries:
            source, target = entry.pair.source, targets[entry.pair.source]
            if target.topic not in there:
                entry.pair = replace(entry.pair, target=target)  # where is looked whether it is back
            if target.topic in there or not _stop(entry, "target", target.topic, starts[source]):
                waiting[source] = f"a cluster does not know {source}, or target {target}, now"
        return waiting

    async def _outdated(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> list[Entry]:
        """Those that go on behind a gap, and those whose source topic is another one than when they were paired: under
        its old id a slice would meet the gap once more, and its record would name what came since. And those that wait,
        perhaps for their topic, or are paired with another than they were copied to."""
        asked = [entry for entry in entries if not entry.is_stopped and entry.pair.source_topic_id]
        topics = await self._source_topics([entry.pair.source for entry in asked]) if asked else {}
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id and topic.partitions}
        return [
            entry
            for entry in entries
            if entry.is_healing
            or (entry.is_waiting and entry.pair.source_topic_id)
            or self._has_strayed(entry, starts)
            or (
                not entry.is_stopped
                and ids.get(entry.pair.source.topic, entry.pair.source_topic_id) != entry.pair.source_topic_id
            )
        ]

    def _needs_own(self, entry: Entry, starts: Mapping[TopicPartition, Start]) -> bool:
        """Whether an entry needs a remote topic of its own: also where that was deleted, and somebody has decided since
        where it goes on."""
        has_moved = starts[entry.pair.source].moved and self._has_strayed(entry, starts)
        return has_moved or self._is_of_another(entry, starts)

    def _is_of_another(self, entry: Entry, starts: Mapping[TopicPartition, Start]) -> bool:
        """Whether an entry's position speaks of a source topic that is gone, and its target is still that one's."""
        topic_id = entry.pair.source_topic_id
        if topic_id is None or not is_of_another(starts[entry.pair.source], topic_id):
            return False
        return entry.pair.target != self._own_target(entry)

    def _has_strayed(self, entry: Entry, starts: Mapping[TopicPartition, Start]) -> bool:
        """Whether an entry was copied to a remote topic of its own, and a broker that lags has paired it with the one
        from before."""
        position = starts[entry.pair.source].position
        if entry.is_stopped or not (self._names_new and position and entry.pair.source_topic_id):
            return False
        return position.target_topic == self._own_target(entry).topic != entry.pair.target.topic

    def _own_target(self, entry: Entry) -> TopicPartition:
        """In the remote topic of its own that an entry's source topic, which has an id, gets."""
        source, topic_id = entry.pair.source, entry.pair.source_topic_id
        assert topic_id is not None, "without an id nobody knows a topic that was made anew"
        return TopicPartition(name_of_new(self._remote_topic(source.topic), topic_id), source.partition)

    async def _make(self, topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
        """Returns why source topics get none now."""
        names = names_of_new(self._remote_topic, topics.values())
        configs, refused = await self._configs_of_new(names)
        wanted = [
            CreateTopic(name, topic, len(topics[topic].partitions), self._new_topics.replication_factor, configs[topic])
            for topic, name in names.items()
            if topic in configs
        ]
        self._refused.reasons.clear()
        made = await make_topics(self._admin, wanted, self._refused)
        for change in made:
            log.info("%s: %s is made for a source topic that was made anew", self._label, change.topic)
        await self._until_there({change.source_topic: change.topic for change in made})
        reasons = self._refused.reasons
        return refused | {change.source_topic: reasons[change.topic] for change in wanted if change.topic in reasons}

    async def _configs_of_new(self, topics: Iterable[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """The settings to make remote topics with, without which a compacted topic would lose records; and why those of
        others are not known."""
        found, unknown = {}, {}
        for topic, configs in (await describe(self._source, list(topics))).items():
            if isinstance(configs, HeliographError):
                unknown[topic] = f"no remote topic is made for {topic}: {configs}"
            else:
                found[topic] = configs_of_new(configs, self._new_topics.properties)
        return found, unknown

    async def _until_there(self, names: Mapping[str, str]) -> None:
        """Or until it is not worth holding up the others for them. Raises SecurityError where one may not be seen."""
        deadline = asyncio.get_running_loop().time() + _APPEAR_TIMEOUT_S
        while True:
            there = (await self._target.metadata(set(names.values()))).topics
            hidden = {name for name, one in there.items() if one.error_code == codes.TOPIC_AUTHORIZATION_FAILED}
            if hidden:
                await self._target.topics(hidden)
            late = [name for name in names.values() if not is_there(there.get(name))]
            if not late or asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(_LOOK_S)


def _stop(entry: Entry, side: str, topic: str, start: Start) -> bool:
    """Whether an entry is stopped, as its topic is gone; one of which nothing was copied loses nothing and is not."""
    if entry.position is None and not start.moved:
        entry.position = start.position  # by which it is known when its topic is there again
    if entry.position is None:
        return False
    gone = verdicts.deleted(side, topic, entry.pair.source, entry.position.next_source_offset)
    entry.stop(gone.reason, gap=gone.gap)
    return True


def _left_to_wait(entries: Sequence[Entry], waiting: Mapping[TopicPartition, str]) -> list[Entry]:
    """Lets entries wait, and returns the others. Raises RetriableError where there are none."""
    if waiting and all(entry.pair.source in waiting for entry in entries):
        raise RetriableError("; ".join(sorted(set(waiting.values()))[:_MOST_NAMED]))
    for entry in entries:
        if why := waiting.get(entry.pair.source):
            entry.wait(why)
    return [entry for entry in entries if entry.pair.source not in waiting]
