"""Java's checkpoint and heartbeat connectors and ours take turns on the same topics, while groups go on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from connect.embedded.brokers import QUICK_JVM, KafkaCluster
from connectors.client import translate_offsets
from connectors.formats.mirror_records import Checkpoint, Heartbeat
from tests.kit.clients import cluster_and_admin
from tests.kit.copies import read_all
from tests.kit.java_program import DEFAULT, JavaMirrorMaker, ask_java, offsets_reported
from tests.kit.mirror import FOLLOWED_GROUPS, SMALL, Mirror
from tests.kit.moving import PLAIN, TRANSACTIONS, Feed, commit, committed, end_of, read
from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long]

_DEADLINE_S: Final = 300.0
_ROUNDS: Final = 40
_BEATS: Final = 3
#: Records that a compacted topic loses would make a translation look too far.
_KINDS: Final = (PLAIN, TRANSACTIONS)


class Turns:
    """One flow, its feed and two groups: one that is always at the end, and one that goes on slowly."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, folder: Path) -> None:
        name = uuid.uuid4().hex[:6]
        self.us, self.eu, self.folder = us.bootstrap, eu.bootstrap, folder
        self.alias = f"us{name}"
        self.feed = Feed(us.bootstrap, name)
        self.fast, self.slow = f"{name}-fast", f"{name}-slow"
        self.groups = f"{name}-.*"
        self.properties: Mapping[str, str] = {
            "clusters": f"{self.alias}, eu",
            f"{self.alias}.bootstrap.servers": us.bootstrap,
            "eu.bootstrap.servers": eu.bootstrap,
            f"{self.alias}->eu.enabled": "true",
            "topics": f".*-{name}",
            "groups": self.groups,
            f"{self.alias}.consumer.isolation.level": "read_committed",
            **SMALL,
            **FOLLOWED_GROUPS,
            "emit.heartbeats.enabled": "true",
            "refresh.groups.interval.seconds": "2",
            "offset.lag.max": "10",
            "eu.offset.flush.interval.ms": "1000",
        }

    def remote(self, kind: str) -> str:
        return f"{self.alias}.{self.feed.topics[kind]}"

    @contextmanager
    def java(self, turn: str) -> Iterator[Callable[[], bool]]:
        log = self.folder / f"{turn}.log"
        with JavaMirrorMaker(self.properties, log, heap="512m", jvm_options=QUICK_JVM) as java:
            yield lambda: java.is_running
            java.stop()

    @contextmanager
    def ours(self, turn: str) -> Iterator[Callable[[], bool]]:
        (self.folder / turn).mkdir()
        with Mirror(self.properties, self.folder / turn) as mirror:
            mirror.start()
            yield lambda: mirror.is_running
            assert mirror.stop() == 0

    async def go_on(self, turn: int) -> dict[str, int]:
        """More is written; one group follows to the end, the other to where the turn before began."""
        await self.feed.write(_ROUNDS)
        ends = {self.feed.topics[kind]: await end_of(self.us, self.feed.topics[kind]) for kind in _KINDS}
        await commit(self.us, self.fast, ends, f"turn {turn}")
        await commit(self.us, self.slow, {topic: end * turn // (turn + 1) for topic, end in ends.items()})
        return ends

    def checkpoints(self) -> list[Checkpoint]:
        """Of plain and transactional topics, in the order in which they were written."""
        records = asyncio.run(read_all(self.eu, f"{self.alias}.checkpoints.internal"))
        return [Checkpoint.decode(record.key, record.value) for record in records]

    def beats(self) -> list[Heartbeat]:
        found = [Heartbeat.decode(one.key, one.value) for one in asyncio.run(read_all(self.eu, "heartbeats"))]
        return [one for one in found if one.source_alias == self.alias]

    def await_beats(self, count: int) -> None:
        wait_until(lambda: len(self.beats()) >= count, _DEADLINE_S, "heartbeats go on")


def test_they_take_turns(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    turns = Turns(us, eu, tmp_path)
    asyncio.run(turns.feed.make())
    try:
        unmoved: dict[str, int] = {}
        for turn, program in enumerate((turns.java, turns.ours, turns.java), 1):
            ends = asyncio.run(turns.go_on(turn))
            beats = len(turns.beats())
            with program(f"turn{turn}") as runs:
                _await_the_end(turns, ends, runs, turn)
                turns.await_beats(beats + _BEATS)
            now = _translated_alike(turns)
            assert all(now[place] >= offset for place, offset in unmoved.items()), (turn, unmoved, now)
            unmoved = now
        _judge(turns)
    finally:
        asyncio.run(_forget_heartbeats(turns.eu))


def _await_the_end(turns: Turns, ends: Mapping[str, int], runs: Callable[[], bool], turn: int) -> None:
    """The group that is at the end at the source is at the end of the copy, by its checkpoints and its own offsets."""

    def arrived() -> bool:
        assert runs()
        last = {(one.group, one.topic): one for one in turns.checkpoints()}
        for kind in _KINDS:
            remote, source = turns.remote(kind), turns.feed.topics[kind]
            at = last.get((turns.fast, remote))
            if at is None or at.upstream_offset != ends[source] or at.metadata != f"turn {turn}":
                return False
            end = asyncio.run(end_of(turns.eu, remote))
            if asyncio.run(read(turns.eu, remote, at.downstream_offset, end)):
                return False
            if asyncio.run(committed(turns.eu, turns.fast, [remote]))[remote] != at.downstream_offset:
                return False
        return True

    wait_until(arrived, _DEADLINE_S, f"turn {turn}: the group at the end is at the end of the copy")


def _translated_alike(turns: Turns) -> dict[str, int]:
    """Both libraries agree; where each group and topic is now."""
    answers = ask_java([f"translate {turns.eu} {DEFAULT} {turns.alias} {group}" for group in (turns.fast, turns.slow)])
    found: dict[str, int] = {}
    for group, answer in zip((turns.fast, turns.slow), answers, strict=True):
        ours = translate_offsets({"bootstrap.servers": turns.eu}, turns.alias, group, _DEADLINE_S)
        assert {group: ours} == offsets_reported(answer)
        found |= {f"{group} {place.topic}": at.offset for place, at in ours.items()}
    return found


def _judge(turns: Turns) -> None:
    for kind in _KINDS:
        remote, topic = turns.remote(kind), turns.feed.topics[kind]
        source = asyncio.run(_offsets(turns.us, topic))
        copies = asyncio.run(read(turns.eu, remote, 0, asyncio.run(end_of(turns.eu, remote))))
        last: dict[str, Checkpoint] = {}
        for one in turns.checkpoints():
            if one.topic != remote:
                continue
            skipped = [
                copy
                for at, copy in copies.items()
                if at < one.downstream_offset and source[copy] >= one.upstream_offset
            ]
            assert not skipped, (one, skipped[:3])
            before = last.get(one.group)
            assert before is None or before.downstream_offset <= one.downstream_offset, (before, one)
            last[one.group] = one
        assert last.keys() == {turns.fast, turns.slow}
    beats = turns.beats()
    assert {(one.source_alias, one.target_alias) for one in beats} == {(turns.alias, "eu")}
    times = [one.timestamp_ms for one in beats]
    assert times == sorted(set(times))


async def _offsets(bootstrap: str, topic: str) -> dict[object, int]:
    records = await read(bootstrap, topic, 0, await end_of(bootstrap, topic))
    return {record: offset for offset, record in records.items()}


async def _forget_heartbeats(bootstrap: str) -> None:
    """Its name is fixed, and others of this cluster's tests would mirror it."""
    async with cluster_and_admin(bootstrap) as (_, admin):
        await admin.delete_topics(["heartbeats"])
