"""The reading half of a slice: nothing that goes wrong may leave a partition standing unnoticed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster, ClusterMetadata, LeaderEpochs, PartitionMetadata, TopicMetadata
from connect.kafka.concurrency import Scope
from connect.kafka.connection import Connection
from connect.kafka.error_causes import Causes, cause_of
from connect.wire import fetch_produce
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import fetch_api
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.fetch_loop import FetchLoop
from connectors.dataplane.leader_connections import Leaders
from connectors.dataplane.source_reader import SourceReader
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from tests.kit import logs as kit
from tests.kit.answers import answers, fails
from tests.kit.logs import source_batch
from tests.kit.members import until
from tests.kit.quotas import Mutable


def with_bytes(**limits: int) -> SliceSettings:
    return SliceSettings("us->eu", 0, {}, {}, **limits)  # type: ignore[arg-type]


SETTINGS = with_bytes()
REAL_SLEEP = asyncio.sleep


def copier(partition: int = 0) -> PartitionCopier:
    pair = TopicPartition("t", partition)
    plan = PartitionPlan(pair, None, pair, None, 0, -1, 0, 0, pipelined=False)
    return PartitionCopier(plan, ProducerIdAndEpoch(7, 0), read_committed=False)


def fetched(records: bytes, error_code: int = 0) -> fetch_produce.FetchedPartition:
    view = memoryview(bytearray(records))
    return fetch_produce.FetchedPartition(b"t", 0, error_code, 9, 9, 0, (), -1, view, None, None)


def answer_of(offsets: Sequence[int], **changed: Any) -> fetch_produce.FetchAnswer:
    row = fetched(source_batch(offsets) if offsets else b"")
    return fetch_produce.FetchAnswer(0, 0, 1, [row._replace(topic=fetch_produce.topic_name_key("t"), **changed)])


def led(partitions: Iterable[int] = (0,), topic_id: UUID | None = None, epoch: int = 0) -> ClusterMetadata:
    rows = {partition: PartitionMetadata(1, epoch, (), 0) for partition in partitions}
    return ClusterMetadata(None, 1, {}, {"t": TopicMetadata("t", topic_id, 0, rows)})


def unexpected(error: BaseException) -> None:
    raise error


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_api, "fetch_version", lambda *_: 12)


def cluster_of(**calls: Any) -> Any:
    return SimpleNamespace(leader_epochs=LeaderEpochs("cluster"), **calls)


def reading(cluster: Any = None, settings: SliceSettings = SETTINGS, **given: Any) -> SourceReader:
    return SourceReader(cluster, settings, lambda _: None, unexpected, **given)


def alone(settings: SliceSettings = SETTINGS, **given: Any) -> tuple[SourceReader, FetchLoop, PartitionCopier]:
    """A reader, one of its loops, and a partition that is in no loop yet."""
    reader = reading(settings=settings, **given)
    return reader, FetchLoop(reader, cast(Cluster, None), settings, 1), copier()


async def test_what_trying_again_does_not_heal_ends_the_slice() -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    refused = PermanentError("DESCRIBE is missing")
    reader = SourceReader(cluster_of(metadata=fails(refused)), SETTINGS, lambda _: None, failure.set_result)
    reader.start([copier()], Leaders(ClusterMetadata(None, -1, {}, {})))
    assert await asyncio.wait_for(failure, 60) is refused
    await reader.stop()


async def test_a_batch_that_does_not_open_stops_its_partition_only() -> None:
    _, loop, machine = alone()
    torn = source_batch([0, 2], attributes=4)  # says zstd, and is not: found on opening it for its gap
    loop.add(machine, 0)
    answer = fetched(source_batch([0]) + torn)
    assert loop._take(machine, answer)
    deque(loop._feed(machine, answer), maxlen=0)
    assert machine.stopped
    assert "source t-0: a batch after offset 0 cannot be decoded" in machine.stopped_reason


def test_a_stopped_partition_takes_no_room_and_without_stored_positions_there_is_none() -> None:
    machine = copier()
    reader = reading(settings=with_bytes(buffer_bytes=10))
    machine.take(kit.fetched(source_batch(range(3))))
    reader.took([machine])
    assert not reader.has_room()
    machine.stop("refused")
    assert reader.has_room()
    for is_held in (True, False):
        reader.hold(is_held=is_held)
        assert reader.has_room() != is_held


def test_partitions_that_cannot_send_leave_the_others_their_room() -> None:
    reader = reading(settings=with_bytes(buffer_bytes=1000))
    stuck = [copier() for _ in range(60)]
    for machine in stuck:
        machine.take(kit.fetched(source_batch(range(3)), source_batch(range(3, 6))))
        machine.faulted = True
    reader.took(stuck)
    assert reader.has_room()
    assert sum(machine.held_bytes for machine in stuck) < 1000
    busy = copier()
    while reader.has_room():
        busy.take(kit.fetched(source_batch(range(busy.fetch_offset, busy.fetch_offset + 3))))
        reader.took([busy])
    assert busy.held_bytes >= 1000
    assert all(machine.fetch_offset == 0 for machine in stuck)


def test_what_partitions_that_cannot_send_hold_takes_no_room_from_the_others() -> None:
    reader = reading(settings=with_bytes(buffer_bytes=1000))
    stuck, busy = copier(0), copier(1)
    for machine, most in ((stuck, 800), (busy, 1000)):
        while machine.held_bytes < most and reader.has_room():
            machine.take(kit.fetched(source_batch([machine.fetch_offset])))
            reader.took([machine])
        machine.faulted = machine is stuck
    assert 800 <= stuck.held_bytes < 1000
    assert busy.held_bytes >= 1000


async def test_a_leader_of_an_epoch_before_what_was_copied_is_not_read() -> None:
    """It is a former one, which may have less, or something else (C2)."""
    pair, topic_id = TopicPartition("t", 0), UUID(int=1)
    former = led(topic_id=topic_id, epoch=4)
    asked, epochs = asyncio.Event(), LeaderEpochs("us")

    class Known:
        leader_epochs = epochs

        async def metadata(self, _: object) -> ClusterMetadata:
            asked.set()
            return replace(former, topics={"t": epochs.current(former.topics["t"])})

    plan = PartitionPlan(pair, topic_id, pair, None, 9, 5, 0, 0, pipelined=False)
    machine = PartitionCopier(plan, ProducerIdAndEpoch(7, 0), read_committed=False)
    reader = reading(Known())
    reader.start([machine], Leaders(former))
    async with asyncio.timeout(60):
        await asked.wait()
    await asyncio.sleep(0)
    assert not reader._loops
    assert machine in reader._unplaced
    await reader.stop()


async def test_an_answer_behind_what_was_given_back_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches would follow a gap."""
    held = Held()
    monkeypatch.setattr(fetch_api, "fetch", held.fetch)
    _, loop, machine = alone()
    machine.take(kit.fetched(source_batch(range(3))))
    loop.add(machine, 0)
    fetching = asyncio.create_task(loop._fetch(cast(Connection, held), 12))
    await held.asked.wait()
    machine.faulted = True
    machine.give_back(0)
    machine.settle({})
    held.answer.set_result(answer_of(range(3, 6)))
    await fetching
    assert (machine.fetch_offset, machine.has_unsent) == (0, False)
    assert [*loop._session.request().partitions.values()] == [(0, 0, -1)]


@pytest.mark.parametrize("has_begun", [True, False])
async def test_at_an_end_an_answer_under_way_is_taken(monkeypatch: pytest.MonkeyPatch, has_begun: bool) -> None:
    """On a link of 0.1 MB/s it took seconds, and would have to come again. A long poll without records is not waited
    for."""
    held = Held()
    connection = Mutable(is_receiving=has_begun)
    monkeypatch.setattr(fetch_api, "fetch", held.fetch)
    cluster = cluster_of(connection=answers(connection))
    taken: list[PartitionCopier] = []
    reader = SourceReader(cluster, SETTINGS, taken.extend, unexpected)
    reader.start([copier()], Leaders(led()))
    await held.asked.wait()
    finishing = asyncio.create_task(reader.finish())
    if has_begun:
        await asyncio.sleep(0.1)
        assert not finishing.done()
        connection.is_receiving = False
        held.answer.set_result(answer_of(range(3)))
    assert await asyncio.wait_for(finishing, 60) is has_begun
    assert len(taken) == has_begun
    assert held.fetches == 1, "nothing more is fetched"
    await reader.stop()


async def test_a_fetch_waits_longer_for_partitions_that_cannot_send(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_ms: list[int] = []

    async def fetch(_connection: object, _version: int, _body: bytes, max_wait_ms: int) -> fetch_produce.FetchAnswer:
        waits_ms.append(max_wait_ms)
        return fetch_produce.FetchAnswer(0, 0, 1, [])

    monkeypatch.setattr(fetch_api, "fetch", fetch)
    _, loop, full = alone(with_bytes(partition_max_bytes=1))
    idle = copier()
    full.take(kit.fetched(source_batch(range(3))))
    loop.add(full, 0)
    loop.add(idle, 0)
    for _ in range(9):
        await loop._fetch(cast(Connection, Mutable()), 12)
    assert waits_ms == [0, 10, 20, 40, 80, 160, 320, 500, 500]
    full.faulted = True
    loop._busy_wait_ms = 5
    await loop._fetch(cast(Connection, Mutable()), 12)
    assert waits_ms[9:] == [500]


@pytest.mark.parametrize(
    ("records", "end", "answer_s", "pause_s"),
    [(3, 3, 0.002, 0.002), (3, 3, 60.0, 0.005), (3, 3, 0.0, 0.0), (3, 9, 0.002, 0.0), (0, 0, 0.002, 0.0)],
    ids=["at the end", "slow target", "nothing sent yet", "behind", "no records"],
)
async def test_what_arrives_record_by_record_is_fetched_as_fast_as_the_target_answers(
    monkeypatch: pytest.MonkeyPatch, records: int, end: int, answer_s: float, pause_s: float
) -> None:
    """Records that are fetched sooner wait for their turn at the target, and each fetch costs the same."""
    fetches = 0
    slept_s: list[float] = []

    async def fetch(*_: object) -> fetch_produce.FetchAnswer:
        nonlocal fetches
        fetches += 1
        if fetches > 1:
            await asyncio.Event().wait()
        return answer_of(range(records), high_watermark=end)

    async def sleep(delay_s: float) -> None:
        slept_s.append(delay_s)

    monkeypatch.setattr(fetch_api, "fetch", fetch)
    monkeypatch.setattr("connectors.dataplane.fetch_loop.asyncio.sleep", sleep)
    cluster = cluster_of(connection=answers(Mutable()))
    reader = reading(cluster, answer_s=lambda: answer_s)
    loop = FetchLoop(reader, cluster, SETTINGS, 1)
    loop.add(copier(), 0)
    async with asyncio.timeout(60), Scope("fetch") as scope:
        scope.spawn(loop.run(), "fetch")
        while fetches < 2:
            await REAL_SLEEP(0)
    assert [delay_s for delay_s in slept_s if delay_s] == ([pause_s] if pause_s else [])


@pytest.mark.parametrize(("partitions", "fetched", "held"), [(1, 8, 16), (2, 8, 12), (8, 3, 3), (100, 1, 1)])
def test_few_partitions_are_fetched_before_what_they_hold_is_sent(partitions: int, fetched: int, held: int) -> None:
    mib = 1 << 20
    assert SETTINGS.partition_fetch_bytes(partitions) == fetched * mib
    assert SETTINGS.partition_held_bytes(partitions) == held * mib


async def test_a_fetch_asks_for_what_arrives_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = 0.0, []

    async def fetch(*_: object) -> fetch_produce.FetchAnswer:
        nonlocal now_s
        now_s += 5.0
        return fetch_produce.FetchAnswer(0, 0, 1, [fetched(bytes(500_000))])

    def encoded(_version: int, limits: fetch_api.FetchLimits, *_: object) -> bytes:
        asked.append(limits.max_bytes)
        return b""

    monkeypatch.setattr(fetch_api, "fetch", fetch)
    monkeypatch.setattr(fetch_api, "encode_fetch", encoded)
    _, loop, _ = alone(clock=lambda: now_s)
    for _ in range(5):
        await loop._fetch(cast(Connection, Held()), 12)
    assert asked == [512 * 1024] * 5


@pytest.mark.parametrize(("waited_s", "loops"), [(0.001, 1), (0.1, 4)])
async def test_partitions_of_a_distant_broker_are_read_over_several_connections(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, loops: int
) -> None:
    asked: dict[str, set[int]] = {}
    each = {partition: copier(partition) for partition in range(8)}
    done = asyncio.Event()

    async def connect(_: int, purpose: str) -> object:
        connection = Mutable(waited_s)
        connection.purpose = purpose
        return connection

    def encoded(*arguments: Any) -> list[tuple[int, int]]:
        return [(index, position[0]) for (_, index), position in arguments[3].items()]

    async def fetch(connection: Any, _: int, body: list[tuple[int, int]], __: int) -> fetch_produce.FetchAnswer:
        await asyncio.sleep(0)
        asked.setdefault(connection.purpose, set()).update(index for index, _ in body)
        rows = []
        for index, offset in body:
            assert offset == each[index].fetch_offset, "no record is read twice or left out"
            records = fetched(source_batch(range(offset, offset + 3)))
            rows.append(records._replace(topic=fetch_produce.topic_name_key("t"), partition=index))
            if offset >= 30 and len(asked) >= loops:
                done.set()
        return fetch_produce.FetchAnswer(0, 0, 0, rows)

    monkeypatch.setattr(fetch_api, "fetch", fetch)
    monkeypatch.setattr(fetch_api, "encode_fetch", encoded)
    reader = reading(cluster_of(connection=connect))
    reader.start(each.values(), Leaders(led(each)))
    async with asyncio.timeout(60):
        await done.wait()
    await reader.stop()
    assert asked.pop("copy") == {*range(8)}
    assert sorted(map(len, asked.values())) == [2] * (loops - 1)


class Held(Mutable):
    """A connection whose one answer is given by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {1: (0, 12)}
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[fetch_produce.FetchAnswer] = asyncio.get_running_loop().create_future()
        self.fetches = 0

    async def fetch(self, *_: object) -> fetch_produce.FetchAnswer:
        self.fetches += 1
        self.asked.set()
        return await self.answer


class Slow(PartitionCopier):
    """Takes three batches of a fetch, for 20 ms each by the stage's clock."""

    def __init__(self, stage: Turns, partition: int) -> None:
        super().__init__(copier(partition).plan, ProducerIdAndEpoch(7, 0), read_committed=False)
        self._stage = stage
        self.steps = 0
        self.kept = memoryview(b"")
        self.opened_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self.opened_bytes

    def taking(self, fetched: memoryview, aborted: Iterable[tuple[int, int]] = ()) -> Iterator[None]:
        self.kept = fetched
        for _ in range(3):
            self.steps += 1
            self._stage.now_s += 0.02
            yield


class Turns:
    """A loop with three slow partitions, and the answer that they get."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reader, self.loop, _ = alone(with_bytes(buffer_bytes=10), clock=lambda: self.now_s)
        self.copiers = [Slow(self, partition) for partition in range(3)]
        for one in self.copiers:
            self.loop.add(one, 0)
        self.loop._session.request()

    def hand_over(self, rows: Sequence[memoryview]) -> asyncio.Task[None]:
        named = {(b"t", one.plan.source.partition): one for one in self.copiers}
        found = [fetched(b"")._replace(partition=partition, records=records) for partition, records in enumerate(rows)]
        return asyncio.create_task(self.loop._hand_over(found, named))

    @property
    def steps(self) -> list[int]:
        return [one.steps for one in self.copiers]


def one_answer(*sizes: int) -> list[memoryview]:
    answer = memoryview(bytearray(sum(sizes)))
    return [answer[sum(sizes[:index]) :][:size] for index, size in enumerate(sizes)]


async def test_others_have_their_turn_while_an_answer_is_opened() -> None:
    """An answer of 16 MiB may take ten seconds, and the worker gives up a slice that is silent for five."""
    turns = Turns()
    handing = turns.hand_over(one_answer(8, 8, 8))
    seen = []
    while not handing.done():
        await asyncio.sleep(0)
        seen.append(sum(turns.steps))
    assert seen[:9] == [*range(1, 10)]


async def test_what_is_opened_waits_for_room() -> None:
    turns = Turns()
    turns.copiers[0].opened_bytes = 10
    handing = turns.hand_over(one_answer(8, 8, 8))
    for _ in range(20):
        await asyncio.sleep(0)
    assert turns.steps == [1, 0, 0]
    turns.copiers[0].opened_bytes = 9
    turns.reader._loops[1] = [turns.loop]
    turns.reader.wake()
    await handing
    assert turns.steps == [3, 3, 3]


def gives_back(turns: Turns) -> None:
    turns.copiers[0].fetch_offset = -1


def are_let_go_of(turns: Turns) -> None:
    turns.loop._drop(turns.copiers[0])
    turns.copiers[1].stop("refused")


@pytest.mark.parametrize(("meanwhile", "steps"), [(gives_back, [1, 3, 3]), (are_let_go_of, [1, 0, 3])])
async def test_who_may_not_take_more_of_an_answer_between_two_batches_gets_no_more(
    meanwhile: Callable[[Turns], None], steps: list[int]
) -> None:
    turns = Turns()
    turns.reader._loops[1] = [turns.loop]
    handing = turns.hand_over(one_answer(8, 8, 8))
    await asyncio.sleep(0)
    meanwhile(turns)
    await handing
    assert turns.steps == steps


async def test_a_small_part_of_an_answer_does_not_keep_all_of_it() -> None:
    turns = Turns()
    await turns.hand_over(one_answer(99, 1000, 1000))
    sizes = [len(cast(bytearray, one.kept.obj)) for one in turns.copiers]
    assert sizes == [99, 2099, 2099]


@pytest.mark.parametrize(("error_code", "tries", "stopped"), [(2, 3, "source-corrupt"), (-1, 50, "")])
def test_damage_that_the_broker_found_stops_its_partition_after_three_tries(
    error_code: int, tries: int, stopped: str
) -> None:
    """What it has no code for is asked again."""
    reader, loop, machine = alone()
    for number in range(1, tries + 1):
        loop.add(machine, 0)
        assert not loop._take(machine, fetched(b"", error_code))
        assert machine.stopped == (number == tries and bool(stopped))
        # It is read from its leader of a moment later.
        assert machine.stopped or (machine in reader._unplaced and machine not in loop._placed)
    assert machine.stopped_error == stopped
    assert ("source offset 0 is damaged (CORRUPT_MESSAGE)" in machine.stopped_reason) == bool(stopped)


def test_too_little_memory_says_nothing_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    _, loop, machine = alone()
    loop.add(machine, 0)

    def cut(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("connectors.dataplane.batches.copier.cut", cut)
    with pytest.raises(MemoryError):
        next(loop._feed(machine, fetched(b"x")))
    assert not machine.stopped


async def test_missing_leaders_are_one_cause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("connectors.dataplane.source_reader._RETRY_S", 0.001)
    topic = TopicMetadata("t", None, 0, {index: PartitionMetadata(-1, 0, (), 5) for index in range(5)})
    nobody = cluster_of(metadata=answers(ClusterMetadata(None, -1, {}, {"t": topic})))
    of_flows = [SliceSettings(flow, 0, {}, {}, source_alias="us") for flow in ("us->eu", "us->asia")]
    readers = [reading(nobody, settings) for settings in of_flows]
    causes = Causes()
    for number, reader in enumerate(readers):
        reader.start([copier(partition) for partition in range(number, 5)], Leaders(ClusterMetadata(None, -1, {}, {})))
    await until(lambda: len(caplog.records) >= 6, "six warnings")
    for reader in readers:
        await reader.stop()
    assert "no leader for source t-0, t-1, t-2 and 2 more; retrying" in caplog.text
    found = [cause_of(record) for record in caplog.records]
    assert [causes.needs_warning(cause) for cause in found if cause is not None] == [True] + [False] * (len(found) - 1)
