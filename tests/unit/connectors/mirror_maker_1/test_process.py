"""A process of MirrorMaker 1: its sources begin by themselves, its streams start rounds as brokers hear of topics."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.core.config.properties import parse_properties
from connect.core.errors import PermanentError, SecurityError
from connect.kafka.cluster import Cluster
from connect.kafka.group_member import Membership
from connect.kafka.group_protocol import CONSUMER, GroupSettings
from connectors.mirror_maker_1 import consumer_group, process
from connectors.mirror_maker_1.config import MirrorConsumerSettings, Options, mirror_settings
from connectors.mirror_maker_1.process import MirrorMaker1, Stream, reached
from connectors.mirror_maker_1.process_context import ProcessContext
from connectors.mirror_maker_1.topics import takes
from connectors.spark.engine import SparkEngine
from tests.kit.answers import answers
from tests.kit.members import until
from tests.kit.one_loop import OneLoop
from tests.kit.virtual_time import in_virtual_time

DEADLINE_S = 60


class Brokers:
    """Tell of ``counts`` partitions, by topic, or of what one that lags knows."""

    name = "source"

    def __init__(self, **counts: int) -> None:
        self.counts: Mapping[str, int] = counts

    def seen_by(self, client_id: str) -> Brokers:
        del client_id
        return self

    async def metadata(self, topics: Collection[str] | None) -> Any:
        found = {
            name: SimpleNamespace(name=name, error_code=0, partitions=dict.fromkeys(range(count)))
            for name, count in self.counts.items()
            if topics is None or name in topics
        }
        return SimpleNamespace(topics=found)


def a_stream(source: Brokers, number: int = 0) -> Stream:
    group = GroupSettings("g", "c", protocol_type=CONSUMER)
    context = SimpleNamespace(
        leases=OneLoop(),
        name=f"stream {number}",
        number=number,
        clusters=SimpleNamespace(source=source, target=Brokers()),
        source=SimpleNamespace(
            flow="source->target", group=group, group_settings=lambda _: group, strategies=("range",), look_s=0
        ),
        settings=SimpleNamespace(options=SimpleNamespace(takes=takes("orders.*", None), listener=None)),
    )
    return Stream(cast(ProcessContext, context))


async def looked(**counts: int) -> tuple[Brokers, Stream]:
    """A source, and a stream that has looked at it."""
    source = Brokers(**counts)
    stream = a_stream(source)
    stream._present = await stream._look()
    return source, stream


async def shared_out(stream: Stream, **wanted: Collection[str]) -> dict[str, list[str]]:
    """What the stream, as leader, gives members that want these topics."""
    said = {member: consumer_group.encode_subscription(topics) for member, topics in wanted.items()}
    given = await stream.assign(consumer_group.RANGE, next(iter(wanted)), said)
    return {member: [str(one) for one in consumer_group.decode_assignment(data)] for member, data in given.items()}


async def starts_a_round(stream: Stream) -> bool:
    """By one look."""
    return stream._has_other_source(await stream._look())


async def test_what_a_lagging_broker_hides_is_given_out_after_the_next_look() -> None:
    source, stream = await looked(orders=2, orders2=1)
    source.counts = {"orders": 1}
    assert await shared_out(stream, me=["orders", "orders2"]) == {"me": ["orders-0"]}
    source.counts = {"orders": 2, "orders2": 1}
    assert await starts_a_round(stream)


async def test_partitions_that_were_not_shared_out_start_a_round() -> None:
    source, stream = await looked(orders=1)
    # Another member has heard of a topic that is new to all whom the leader asks, and which it does not want itself.
    assert await shared_out(stream, me=["orders"], other=["orders", "clicks"]) == {"me": ["orders-0"], "other": []}
    assert not await starts_a_round(stream)
    source.counts = {"orders": 1, "clicks": 1}
    await asyncio.wait_for(stream._look_for_changes(), DEADLINE_S)


async def test_a_leader_compares_with_what_it_shared_out_and_not_with_its_older_look() -> None:
    source, stream = await looked(orders=1)
    source.counts = {"orders": 2}
    assert await shared_out(stream, me=["orders"]) == {"me": ["orders-0", "orders-1"]}
    assert not await starts_a_round(stream)
    source.counts = {"orders": 3}
    assert await starts_a_round(stream)


async def test_a_leader_joins_again_for_a_topic_that_is_new_to_it() -> None:
    source, stream = await looked(orders=1)
    await shared_out(stream, me=["orders"])
    source.counts = {"orders": 1, "orders2": 1}
    assert await starts_a_round(stream)


async def test_who_leads_no_longer_compares_with_its_own_look() -> None:
    source, stream = await looked(orders=1, clicks=1)
    await shared_out(stream, me=["orders"], other=["clicks"])

    joined = Membership(2, "me", leader="other", protocol=consumer_group.RANGE, assignment=b"")
    stream._member = cast(Any, SimpleNamespace(join=answers(joined)))
    await stream._joined()
    source.counts = {"orders": 1, "clicks": 2}
    assert not await starts_a_round(stream)
    source.counts = {"orders": 2, "clicks": 2}
    assert await starts_a_round(stream)


async def test_a_target_topic_that_was_made_here_and_given_more_partitions_is_copied_in_another_way() -> None:
    _, stream = await looked(orders=3)
    stream._copying = cast(Any, SimpleNamespace(target_counts={}))
    target = cast(Brokers, stream._context.clusters.target)
    target.counts = {"orders": 3}
    assert not stream._has_other_target((await stream._look()).there), "it is being made"
    stream._copying.target_counts = {"orders": 3}
    assert not stream._has_other_target((await stream._look()).there)
    target.counts = {"orders": 6}
    await asyncio.wait_for(stream._look_for_changes(), DEADLINE_S)


async def test_what_is_copied_by_key_ends_with_the_session_as_no_successor_fences_it() -> None:
    stream = a_stream(Brokers(orders=3))
    for by_key in (False, True):
        stream._copying = cast(Any, SimpleNamespace(copies_by_key=by_key))
        stream.lease_lost()
        assert stream._lost.is_set() is by_key


@in_virtual_time
async def test_a_long_clean_end_is_waited_for_within_the_rebalance_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[float] = []

    class LongDrain(SimpleNamespace):
        async def run(self) -> None:
            await self.stopping.wait()
            await asyncio.sleep(40)
            ended.append(asyncio.get_running_loop().time())

        def stop(self) -> None:
            self.stopping.set()

    stream = a_stream(Brokers())
    monkeypatch.setattr(process, "Copying", lambda *_: LongDrain(stopping=asyncio.Event()))
    monkeypatch.setattr(stream, "_look_for_changes", asyncio.Event().wait)
    stream.rebalance_begun()
    given = consumer_group.encode_assignment([])
    await stream._generation(Membership(1, "me", "me", consumer_group.RANGE, given))
    assert ended


async def test_wanted_topics_that_are_taken_for_internal_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = Brokers(**{"orders": 1, "orders-internal": 1})
    streams = [a_stream(source, number) for number in range(2)]
    for _ in range(2):
        for stream in streams:
            assert list((await stream._look()).here) == ["orders"]
    assert caplog.text.count("whatever the command line says: orders-internal") == 1
    source.counts = {**source.counts, "orders.internal": 1}
    await streams[0]._look()
    assert caplog.text.count("whatever the command line says: orders.internal") == 1


class Nothing:
    def __init__(self, *_: object, **__: object) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...


class Streams:
    """Run until they are stopped, or are made to fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.fails = asyncio.Event()

    def made(self, source: MirrorConsumerSettings) -> Any:
        stopping = asyncio.Event()

        async def run() -> None:
            self.begun.append(source.name)
            either = [asyncio.create_task(one.wait()) for one in (stopping, self.fails)]
            await asyncio.wait(either, return_when="FIRST_COMPLETED")
            for task in either:
                task.cancel()
            if self.fails.is_set() and not stopping.is_set():
                raise PermanentError(f"{source.name} failed")
            self.stopped.append(source.name)

        return SimpleNamespace(run=run, stop=stopping.set, view=list)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()

    async def clusters(self: MirrorMaker1, source: MirrorConsumerSettings, closing: AsyncExitStack) -> Any:
        if source.name == "source1":  # which nobody answers for
            await self._over.wait()
            return None
        return object()

    monkeypatch.setattr(process, "LinkServer", Nothing)
    monkeypatch.setattr(process, "Admin", Nothing)
    monkeypatch.setattr(MirrorMaker1, "_clusters", clusters)
    monkeypatch.setattr(process, "Stream", lambda context: made.made(context.source))
    return made


def maker_of_three() -> MirrorMaker1:
    consumer = parse_properties("bootstrap.servers=a:9092\ngroup.id=g\n", "c.properties")
    producer = parse_properties("bootstrap.servers=b:9092\n", "p.properties")
    settings = mirror_settings([consumer] * 3, producer, Options(takes(".*", None)), lambda _: None)
    return MirrorMaker1(settings, cast(SparkEngine, SimpleNamespace(code="")))


async def test_a_source_that_does_not_answer_keeps_no_other_waiting(streams: Streams) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(maker_of_three().run(stop))
    await until(lambda: sorted(streams.begun) == ["source2", "source3"], "the others have begun")
    stop.set()
    await running
    assert sorted(streams.stopped) == ["source2", "source3"]


async def test_the_error_of_one_ends_all_and_is_raised(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    running = asyncio.create_task(maker_of_three().run(asyncio.Event()))
    await until(lambda: len(streams.begun) == 2, "the others have begun")
    streams.fails.set()
    with pytest.raises(PermanentError, match=r"source[23] failed"):
        await running
    del running
    gc.collect()
    # The other one fails as well: its error is in the log as it is, not as an exception that was never retrieved.
    assert [record.message.split()[1] for record in caplog.records] == ["failed"]


class Answering:
    """Answer once they are ``up``, or refuse us."""

    name = "source"

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.refuses = False
        self.asked = asyncio.Event()
        self.let_go = False

    async def wait_reachable(self, waiting: Callable[[str], None]) -> None:
        self.asked.set()
        try:
            await self.up.wait()
        except asyncio.CancelledError:
            self.let_go = True
            raise
        if self.refuses:
            raise SecurityError("no")

    @property
    def as_cluster(self) -> Cluster:
        return cast(Cluster, self)


async def test_it_goes_on_once_a_broker_answers() -> None:
    brokers = Answering()
    brokers.up.set()
    assert await reached(brokers.as_cluster, asyncio.Event())


async def test_a_stop_ends_the_waiting() -> None:
    brokers, stop = Answering(), asyncio.Event()
    reaching = asyncio.create_task(reached(brokers.as_cluster, stop))
    await brokers.asked.wait()
    stop.set()
    assert not await reaching
    assert brokers.let_go


async def test_a_refusal_is_raised() -> None:
    brokers = Answering()
    brokers.refuses = True
    brokers.up.set()
    with pytest.raises(SecurityError):
        await reached(brokers.as_cluster, asyncio.Event())
