"""Partitions come, go and move between the tasks of a running mirror; what stays is copied on under the same epochs."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_and_admin
from tests.kit.mirror import Mirror, one_flow
from tests.kit.shared_mirror import LIVE, LIVE_PARTITIONS, LIVE_TOPIC, SharedMirror
from tests.kit.stream import DEADLINE_S, Stream, appear, longest_gap_s, producers_of
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration, pytest.mark.slow]

#: A machine may be busy, and stand still for seconds. That no task starts anew is known by its producers; this is for
#: slices that live on and copy nothing.
_GAP_S = 20.0


@pytest.fixture
def stage(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> Iterator[tuple[Stream, Mirror]]:
    alias = f"us{uuid.uuid4().hex[:6]}"
    properties = {**one_flow(us.bootstrap, eu.bootstrap, f"{alias}-.*", alias), "refresh.topics.interval.seconds": "1"}
    with Mirror(properties, tmp_path) as mirror:
        yield Stream(us, eu, alias), mirror
        assert mirror.stop() == 0
        mirror.assert_gone()


async def test_partitions_come_go_and_move_and_the_others_are_copied_on(shared: SharedMirror) -> None:
    stream, mirror, start = Stream(shared.us, shared.eu, LIVE), shared.mirror, shared.mirror.log_end()
    a, b, c, d, e = (f"{LIVE}-{name}" for name in "abcde")
    assert a == LIVE_TOPIC
    staying = stream.begin(a, LIVE_PARTITIONS)
    writing = asyncio.create_task(stream.write())
    reading = [asyncio.create_task(stream.read(staying))]
    await stream.until_copied(staying)
    producers = await producers_of(stream, staying)
    began_s = time.monotonic()

    await make_topics(stream.us.bootstrap, {b: 1, c: 1, d: 1, e: 1})
    coming = [one for topic in (b, c, d, e) for one in stream.begin(topic, 1)]
    await appear(stream, [b, c, d, e])
    reading.append(asyncio.create_task(stream.read(coming[:2])))
    reading.append(asyncio.create_task(stream.read(coming[2:])))
    await stream.until_copied(coming)

    # Both tasks have four now. Two of the second's go, so one of the first's moves there.
    await stream.end(d, e)
    before = len(stream.copied[coming[1]])
    async with cluster_and_admin(stream.us.bootstrap) as (_, admin):
        await admin.delete_topics([d, e])
    await asyncio.to_thread(mirror.await_line, start, ["task 1: its next slice copies", f"{c}-0"], DEADLINE_S)
    moved = len(stream.copied[coming[1]])
    await stream.until_copied(coming[1:2], max(before, moved) + 200)

    gaps = {one: longest_gap_s(stream.seen_s[one], began_s) for one in staying}
    assert await producers_of(stream, staying) == producers, "under the same epochs"
    stream.stop()
    await writing
    for one in [*staying, *coming[:2]]:
        await stream.until_copied([one], stream.written[one])
        assert stream.copied[one] == list(range(stream.written[one])), one
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    again = [line for line in mirror.log_lines(start) if f"{LIVE}->" in line and "taking over again" in line]
    assert not again
    assert max(gaps.values()) < _GAP_S + stream.longest_pause_s, gaps


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_kills_while_topics_come_leave_every_partition_exact(stage: tuple[Stream, Mirror], seed: int) -> None:
    """Each round a topic comes and the worker is killed somewhere in what follows from that."""
    stream, mirror = stage
    chance = random.Random(seed)
    first = f"{stream.alias}-a"
    await make_topics(stream.us.bootstrap, {first: 3})
    partitions = stream.begin(first, 3)
    mirror.start()
    writing = asyncio.create_task(stream.write())
    reading = [asyncio.create_task(stream.read(partitions))]
    await stream.until_copied(partitions)
    for name in "bcd":
        topic = f"{stream.alias}-{name}"
        await make_topics(stream.us.bootstrap, {topic: 2})
        added = stream.begin(topic, 2)
        partitions = [*partitions, *added]
        await appear(stream, [topic])
        reading.append(asyncio.create_task(stream.read(added)))
        await asyncio.sleep(chance.uniform(0, 2))
        await asyncio.to_thread(mirror.kill)
        mirror.start()
        await stream.until_copied(added)
    stream.stop()
    await writing
    for one in partitions:
        await stream.until_copied([one], stream.written[one])
        assert stream.copied[one] == list(range(stream.written[one])), one
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
