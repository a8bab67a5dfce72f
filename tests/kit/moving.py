"""Consumers that move from one cluster to another while topics are written: each record has a value of its own."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from connectors.client import Offsets, translate_offsets_of
from tests.kit.java_program import DEFAULT, IDENTITY, ask_java, offsets_reported
from tests.kit.mirror import CALM, FOLLOWED_GROUPS, SMALL
from tests.kit.topics import make_topics

#: Far less than positions take to be stored: whoever looks while producers write sees records that wait, always.
_PAUSE_S: Final = 0.01
_EACH: Final = 5
_KEYS: Final = 40
#: More offsets than a round has.
_TAIL: Final = 60
_COMPACTED: Final = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
PLAIN, TRANSACTIONS, COMPACTED = "plain", "transactions", "compacted"
KINDS: Final = (PLAIN, TRANSACTIONS, COMPACTED)


#: Where groups leave the source, from where it ends then.
PLACES: Final[Mapping[str, Callable[[int], int]]] = {
    "start": lambda _: 0,
    "near": lambda _: 7,
    "third": lambda end: end // 3,
    "half": lambda end: end // 2,
    "ten": lambda end: end - 10,
    "end": lambda end: end,
}


class FlowOf(NamedTuple):
    """One of two flows from one source: the alias that it has there, and its policy."""

    alias: str
    policy: str

    def remote(self, topic: str) -> str:
        return topic if self.policy == IDENTITY else f"{self.alias}.{topic}"

    @property
    def policy_class(self) -> str:
        return f"org.apache.kafka.connect.mirror.{self.policy}"

    def client(self, bootstrap: str) -> dict[str, str]:
        """Properties of a client library on the target."""
        return {
            "bootstrap.servers": bootstrap,
            "replication.policy.class": self.policy_class,
            "source.cluster.alias": self.alias,
        }


def translated_alike(
    bootstrap: str, flows: Sequence[FlowOf], groups: re.Pattern[str], deadline_s: float
) -> Mapping[FlowOf, Mapping[str, Offsets]]:
    """Where groups stand by what a mirror has written on the target: Java's client library agrees with ours."""
    ours = {flow: translate_offsets_of(flow.client(bootstrap), flow.alias, groups, deadline_s) for flow in flows}
    questions = [f"translate-all {bootstrap} {flow.policy} {flow.alias} {groups.pattern}" for flow in flows]
    assert list(map(offsets_reported, ask_java(questions))) == list(ours.values())
    return ours


def flows_of(name: str) -> list[FlowOf]:
    return [FlowOf(f"def{name}", DEFAULT), FlowOf(f"ide{name}", IDENTITY)]


def two_flows(us: str, eu: str, name: str) -> Mapping[str, str]:
    """Both flows of the topics and groups of a name, with checkpoints and group offsets every second."""
    flows = flows_of(name)
    return {
        "clusters": ", ".join([*(flow.alias for flow in flows), "eu"]),
        "eu.bootstrap.servers": eu,
        "topics": f".*-{name}",
        "groups": f"{name}-.*",
        **SMALL,
        **CALM,
        **FOLLOWED_GROUPS,
        **{f"{flow.alias}.bootstrap.servers": us for flow in flows},
        **{f"{flow.alias}.consumer.isolation.level": "read_committed" for flow in flows},
        **{f"{flow.alias}->eu.enabled": "true" for flow in flows},
        **{f"{flow.alias}->eu.replication.policy.class": flow.policy_class for flow in flows},
    }


class Processed(NamedTuple):
    key: bytes | None
    value: bytes | None

    @property
    def round(self) -> int:
        """Of its feed."""
        return int((self.value or b"0").split()[0])


class Feed:
    """Three topics of one partition: plain, transactional with every other one aborted, and compacted."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._stopped = asyncio.Event()
        self.topics = {kind: f"{kind}-{name}" for kind in KINDS}
        #: What readers of committed records get, in order, unless a cleaner takes it.
        self.written: dict[str, list[Processed]] = {kind: [] for kind in KINDS}
        self.rounds = 0

    async def make(self) -> None:
        await make_topics(self._bootstrap, {self.topics[PLAIN]: 1, self.topics[TRANSACTIONS]: 1})
        await make_topics(self._bootstrap, {self.topics[COMPACTED]: 1}, _COMPACTED)

    async def write(self, rounds: int, pause_s: float = 0.0) -> None:
        """So many rounds of some records in each topic, or fewer where it is stopped."""
        async with (
            AIOKafkaProducer(bootstrap_servers=self._bootstrap) as plain,
            AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=f"feed-{self._name}") as transactional,
        ):
            for _ in range(rounds):
                if self._stopped.is_set():
                    break
                await self._round(plain, transactional)
                await asyncio.sleep(pause_s)

    async def load(self) -> None:
        await self.write(1_000_000, _PAUSE_S)

    def stop(self) -> None:
        self._stopped.set()

    async def _round(self, plain: AIOKafkaProducer, transactional: AIOKafkaProducer) -> None:
        number, sent = self.rounds + 1, []
        for part in range(2 * _EACH):
            one = Processed(b"%d" % ((number * 7 + part) % _KEYS), b"%d %d" % (number, part))
            for kind in (PLAIN, COMPACTED):
                sent.append(await plain.send(self.topics[kind], one.value, key=one.key))
                self.written[kind].append(one)
        for aborts in (False, True):
            await transactional.begin_transaction()
            for part in range(_EACH):
                one = Processed(None, b"%d %d %d" % (number, part, aborts))
                await transactional.send(self.topics[TRANSACTIONS], one.value)
                if not aborts:
                    self.written[TRANSACTIONS].append(one)
            await (transactional.abort_transaction() if aborts else transactional.commit_transaction())
        await asyncio.gather(*sent)
        self.rounds = number


@dataclass(slots=True)
class Mover:
    """One consumer group: what it processed, by the kind of topic, and where it left the source."""

    group: str
    seen: dict[str, list[Processed]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    left: dict[str, int] = field(default_factory=dict)

    async def process(self, bootstrap: str, topic: str, kind: str, begin: int, end: int) -> int:
        """The committed records of partition 0 from one offset to before another; where it stands then."""
        found = await read(bootstrap, topic, begin, end)
        self.seen[kind] += found.values()
        return end

    async def leave(self, bootstrap: str, topics: Mapping[str, str], place: Callable[[int], int]) -> None:
        """Process each topic (by kind) up to a place before where it ends now, and commit that."""
        for kind, topic in topics.items():
            at = place(await end_of(bootstrap, topic))
            self.left[topic] = await self.process(bootstrap, topic, kind, 0, at)
        await commit(bootstrap, self.group, self.left, f"left by {self.group}")

    def copy(self) -> Mover:
        return Mover(self.group, {kind: list(seen) for kind, seen in self.seen.items()}, dict(self.left))


async def read(bootstrap: str, topic: str, begin: int, end: int) -> dict[int, Processed]:
    """Committed records of partition 0, by offset."""
    place, found = TopicPartition(topic, 0), dict[int, Processed]()
    if begin >= end:
        return found
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([place])
        consumer.seek(place, begin)
        while await consumer.position(place) < end:
            for record in (await consumer.getmany(place, timeout_ms=250)).get(place, []):
                if record.offset < end:
                    found[record.offset] = Processed(record.key, record.value)
    return found


async def commit(bootstrap: str, group: str, offsets: Mapping[str, int], metadata: str = "") -> None:
    """Store offsets of partitions 0 for a group that nobody is in."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        places = {TopicPartition(topic, 0): OffsetAndMetadata(offset, metadata) for topic, offset in offsets.items()}
        consumer.assign(list(places))
        await consumer.commit(places)


async def committed(bootstrap: str, group: str, topics: Iterable[str]) -> dict[str, int | None]:
    """What a group has stored of partitions 0."""
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        return {topic: await consumer.committed(TopicPartition(topic, 0)) for topic in topics}


async def end_of(bootstrap: str, topic: str) -> int:
    """The offset behind the last record of partition 0 that a reader of committed records can get to."""
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        return int((await consumer.end_offsets([place]))[place])


async def last_round(bootstrap: str, topic: str) -> int:
    """Of what a feed has written, by the end of a topic or of its copy."""
    end = await end_of(bootstrap, topic)
    found = await read(bootstrap, topic, max(end - _TAIL, 0), end)
    return max((one.round for one in found.values()), default=0)


async def not_processed_once(bootstrap: str, mover: Mover, feed: Feed, remote: Callable[[str], str] = str) -> list[str]:
    """What a group would not process once that goes on at its own offsets on a target; ``remote`` names copies."""
    at = await committed(bootstrap, mover.group, [remote(topic) for topic in feed.topics.values()])
    found = [f"{topic} has no offset" for topic, offset in at.items() if offset is None]
    for kind, topic in feed.topics.items():
        if (begin := at[remote(topic)]) is not None:
            moved, end = mover.copy(), await end_of(bootstrap, remote(topic))
            await moved.process(bootstrap, remote(topic), kind, begin, end)
            found += not_once(moved.seen[kind], feed.written[kind], is_compacted=kind == COMPACTED)
    return found


def not_once(processed: Sequence[Processed], written: Sequence[Processed], *, is_compacted: bool) -> list[str]:
    """What was not processed once of ``written``, in sentences; a compacted record may give way to a later one."""
    counts = Counter(processed)
    faults = [f"{one.value!r} was processed {count} times" for one, count in counts.items() if count > 1]
    place = {one: at for at, one in enumerate(written)}
    faults += [f"{one.value!r} was never written" for one in counts if one not in place]
    last: dict[bytes | None, int] = {}
    for one in counts:
        last[one.key] = max(last.get(one.key, -1), place.get(one, -1))
    for one, at in place.items():
        if not counts[one] and not (is_compacted and last.get(one.key, -1) > at):
            faults.append(f"{one.value!r} was not processed")
    return faults
