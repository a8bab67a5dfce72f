"""Consumers of 36 positions move there and back under load; Java's library, ours and synced offsets agree."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from connect.embedded.brokers import KafkaCluster
from connectors import client
from connectors.client import Offsets
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapReader
from tests.kit.clients import cluster_at
from tests.kit.copies import read_all
from tests.kit.map_judge import judge_map
from tests.kit.mirror import Mirror
from tests.kit.moving import (
    COMPACTED,
    KINDS,
    PLACES,
    Feed,
    FlowOf,
    Mover,
    commit,
    committed,
    end_of,
    flows_of,
    last_round,
    not_once,
    read,
    translated_alike,
    two_flows,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

_DEADLINE_S: Final = 240.0
_POLL_S: Final = 0.5
_ROUNDS_BEFORE: Final = 120


class Stage:
    """Both clusters, the feed, its movers, and who is asked last in every look at the groups."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, mirror: Mirror, name: str) -> None:
        self.us, self.eu, self.mirror = us, eu, mirror
        self.feed = Feed(us.bootstrap, name)
        self.flows = flows_of(name)
        self.movers = [Mover(f"{name}-{place}") for place in PLACES]
        self.witness = f"{name}-zz"
        self.groups = re.compile(f"{name}-(?!zz).*")

    async def leave_the_source(self) -> None:
        for mover, place in zip(self.movers, PLACES.values(), strict=True):
            await mover.leave(self.us.bootstrap, self.feed.topics, place)

    async def is_copied(self, rounds: int) -> bool:
        copies = [flow.remote(topic) for flow in self.flows for topic in self.feed.topics.values()]
        return all([await last_round(self.eu.bootstrap, topic) >= rounds for topic in copies])

    async def is_witnessed(self, offset: int) -> bool:
        """Whether the groups have been looked at since the witness stood at ``offset``, by both flows."""
        for flow in self.flows:
            records = await read_all(self.eu.bootstrap, f"{flow.alias}.checkpoints.internal")
            found = [Checkpoint.decode(record.key, record.value) for record in records]
            if not any(one.group == self.witness and one.upstream_offset == offset for one in found):
                return False
        return True

    async def until(self, ask: Callable[[], Awaitable[bool]], what: str) -> None:
        await self.mirror.until(ask, what, _DEADLINE_S)


def test_they_process_every_record_once(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    name = uuid.uuid4().hex[:6]
    with Mirror(two_flows(us.bootstrap, eu.bootstrap, name), tmp_path) as mirror:
        asyncio.run(_move(Stage(us, eu, mirror, name)))
        assert mirror.stop() == 0


async def _move(stage: Stage) -> None:
    feed = stage.feed
    await feed.make()
    await feed.write(_ROUNDS_BEFORE)
    first = feed.topics[KINDS[0]]
    await commit(stage.us.bootstrap, stage.witness, {first: 0})
    stage.mirror.start()
    loading = asyncio.create_task(feed.load(), name="load")
    try:
        await stage.leave_the_source()
        written = feed.rounds
        await stage.until(lambda: stage.is_copied(written), "what was there when groups left is copied")
        await commit(stage.us.bootstrap, stage.witness, {first: 1})
        await stage.until(lambda: stage.is_witnessed(1), "the groups have been looked at")
        places = await _translated(stage)
        there = await _go_on(stage, places)
    finally:
        feed.stop()
        await loading
    await stage.until(lambda: stage.is_copied(feed.rounds), "all is copied")
    await _judge(stage, there)


async def _translated(stage: Stage) -> Mapping[FlowOf, Mapping[str, Offsets]]:
    """By Java's library, with which ours and the groups' own offsets agree."""
    found = await asyncio.to_thread(translated_alike, stage.eu.bootstrap, stage.flows, stage.groups, _DEADLINE_S)
    for by_group in found.values():
        assert by_group.keys() == {mover.group for mover in stage.movers}
        assert all({at.metadata for at in of.values()} == {f"left by {group}"} for group, of in by_group.items())

    async def is_moved() -> bool:
        for flow in stage.flows:
            for group, of in found[flow].items():
                wanted = {place.topic: at.offset for place, at in of.items()}
                if await committed(stage.eu.bootstrap, group, wanted) != wanted:
                    return False
        return True

    await stage.until(is_moved, "groups stand on eu where their checkpoints say")
    return found


async def _go_on(stage: Stage, places: Mapping[FlowOf, Mapping[str, Offsets]]) -> dict[tuple[FlowOf, str], _There]:
    there = {}
    for flow in stage.flows:
        for mover in stage.movers:
            moved, offsets = mover.copy(), dict[str, int]()
            for kind, topic in stage.feed.topics.items():
                remote = flow.remote(topic)
                begin = places[flow][mover.group][client.TopicPartition(remote, 0)].offset
                end = max(begin, (begin + await end_of(stage.eu.bootstrap, remote)) // 2)
                offsets[kind] = await moved.process(stage.eu.bootstrap, remote, kind, begin, end)
            there[flow, mover.group] = _There(moved, offsets)
    return there


class _There(NamedTuple):
    mover: Mover
    #: Where it stands on the target, by kind.
    at: Mapping[str, int]


async def _judge(stage: Stage, there: Mapping[tuple[FlowOf, str], _There]) -> None:
    """The rest is processed on the target by one half of each, and back on the source by the other."""
    faults: list[str] = []
    exact = 0
    async with cluster_at(stage.eu.bootstrap, "eu") as cluster:
        for flow in stage.flows:
            maps = MapReader(cluster, f"mm2-offset-map.{flow.alias}.internal")
            await maps.follow()
            for mover in stage.movers:
                stays, at = there[flow, mover.group]
                goes_back = stays.copy()
                for kind, topic in stage.feed.topics.items():
                    remote = flow.remote(topic)
                    end = await end_of(stage.eu.bootstrap, remote)
                    await stays.process(stage.eu.bootstrap, remote, kind, at[kind], end)
                    pair = maps.current(TopicPartition(topic, 0))
                    assert pair is not None
                    back = await maps.reverse(pair, at[kind])
                    assert back is not None
                    end = await end_of(stage.us.bootstrap, topic)
                    await goes_back.process(stage.us.bootstrap, topic, kind, back.offset, end)
                    for way, one in (("there", stays), ("and back", goes_back)):
                        found = not_once(one.seen[kind], stage.feed.written[kind], is_compacted=kind == COMPACTED)
                        exact += not found
                        faults += [f"{flow.policy} {mover.group} {kind} {way}: {fault}" for fault in found[:3]]
    for flow in stage.flows:
        for topic in stage.feed.topics.values():
            place, maps_topic = TopicPartition(topic, 0), f"mm2-offset-map.{flow.alias}.internal"
            verdict = await judge_map(stage.us, stage.eu, maps_topic, place, read_committed=True)
            faults += verdict.faults[:3]
            assert verdict.same and verdict.reversed
    assert not faults, "\n".join(faults)
    compacted = stage.feed.topics[COMPACTED]
    for bootstrap, topic in ((stage.us.bootstrap, compacted), (stage.eu.bootstrap, stage.flows[0].remote(compacted))):
        assert len(await read(bootstrap, topic, 0, await end_of(bootstrap, topic))) < len(stage.feed.written[COMPACTED])
    assert exact == 2 * len(stage.flows) * len(stage.movers) * len(KINDS)
    sizes = {kind: len(written) for kind, written in stage.feed.written.items()}
    print(f"{exact} of {exact} positions exact; records written: {sizes}")
