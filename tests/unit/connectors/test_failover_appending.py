"""What only an old primary holds is appended without a hole, and a hole that is there is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, NotEnoughReplicasError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED
from connect.kafka.topic_configs import ConfigSource, TopicConfig
from connectors.dataplane.plan import TopicPartition
from connectors.failover import appended, appending, stranded
from connectors.failover.appended import HEADER, Appended
from connectors.failover.draining import CopiedEnd
from connectors.failover.logs import Fate, Log
from connectors.failover.own import Own, Range
from connectors.failover.stranded import Stranded
from connectors.positions import Position

ORDERS = TopicPartition("orders", 0)
ONE = Stranded(Own("orders", 0, 20, 29, 10), ORDERS, ((20, 30),))
VALUE = b"v" * 100


def record(offset: int, value: bytes = VALUE, headers: Sequence[tuple[str, bytes]] = ()) -> Any:
    return SimpleNamespace(
        offset=offset, key=None, value=value, timestamp=offset, timestamp_type=0, headers=tuple(headers)
    )


class Broker:
    """Takes batches but the ``refused``-th, and then again: as one that does not know the producer.

    ``log`` has the source offsets of what it took, as headers tell.
    """

    def __init__(self, refused: int = -1, error: type[KafkaError] = MessageSizeTooLargeError) -> None:
        self.log: list[list[int]] = []
        self.codecs: set[int] = set()
        self.started_with: dict[str, Any] = {}
        self._refused = refused
        self._error = error
        self._batches = 0
        self._on_their_way = 0

    def producer(self, **arguments: Any) -> Broker:
        self.started_with = arguments
        return self

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(self.started_with["max_batch_size"], DefaultRecordBatch.CODEC_ZSTD)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[None]:
        assert (topic, partition) == ORDERS
        assert not self._on_their_way, "the next one is sent once this one is there"
        self._on_their_way += 1
        number, self._batches = self._batches, self._batches + 1
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take() -> None:
            self._on_their_way -= 1
            if number == self._refused:
                answer.set_exception(self._error())
                return
            data = DefaultRecordBatch(batch._build())
            self.codecs.add(data.compression_type)
            self.log.append([int(dict(one.headers)[HEADER].removeprefix(b"us/orders-0@")) for one in data])
            answer.set_result(None)

        asyncio.get_running_loop().call_soon(take)
        return answer


@pytest.fixture
def site() -> Any:
    flow = SimpleNamespace(flow="us->eu", source_alias="us", target_alias="eu", map_topic="map", name="m",
                           changing_key="", enabled=False)  # fmt: skip
    back = SimpleNamespace(flow="eu->us", map_topic="map", name="m")
    target = SimpleNamespace(settings=SimpleNamespace(aiokafka_arguments=dict))
    return SimpleNamespace(flow=flow, back=back, source="us", target=target)


def arrange(
    monkeypatch: pytest.MonkeyPatch, broker: Broker, records: Sequence[Any], max_message_bytes: str = "1000000"
) -> None:
    async def read(*_: Any) -> AsyncGenerator[Any, None]:
        for each in records:
            yield each

    async def describe(_: Any, topics: set[str]) -> Any:
        return {one: {"max.message.bytes": TopicConfig(max_message_bytes, ConfigSource.TOPIC)} for one in topics}

    monkeypatch.setattr(stranded, "read_ranges", read)
    monkeypatch.setattr(appending, "describe", describe)
    monkeypatch.setattr(appending, "AIOKafkaProducer", broker.producer)


async def test_nothing_is_appended_behind_a_batch_that_is_refused(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    """The broker would take it, and the next run would go on behind it."""
    broker = Broker(refused=1)
    arrange(monkeypatch, broker, [record(offset) for offset in range(20, 30)], "500")
    with pytest.raises(PermanentError) as raised:
        await appending._append_all(site, [ONE], print)
    assert broker.log == [[20, 21, 22]]
    for word in ("cluster eu", "orders-0", "offsets 23 to 25", "max.message.bytes", "run this again"):
        assert word in str(raised.value)


async def test_a_record_of_any_size_goes_alone_and_compressed(monkeypatch: pytest.MonkeyPatch, site: Any) -> None:
    broker = Broker()
    large = [record(20), record(21, bytes(900)), record(22), record(23)]
    arrange(monkeypatch, broker, large, "500")
    said: list[str] = []
    assert await appending._append_all(site, [ONE], said.append) == 4
    assert (broker.log, broker.codecs) == ([[20], [21], [22, 23]], {DefaultRecordBatch.CODEC_ZSTD})
    assert broker.started_with["compression_type"] == "zstd"
    assert said == ["orders-0: 4 records appended to orders-0"]


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (InvalidTimestampError, PermanentError, "message.timestamp.before.max.ms"),
        (NotEnoughReplicasError, RetriableError, "replicas"),
        (KafkaError, PermanentError, "the log of its broker"),
    ],
)
async def test_a_refusal_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, site: Any, error: type[KafkaError], kind: type[Exception], word: str
) -> None:
    arrange(monkeypatch, Broker(0, error), [record(20)])
    with pytest.raises(kind, match=f"offset 20 of orders-0 of cluster us.*{word}"):
        await appending._append_all(site, [ONE], print)


# -- what is there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "first", "found"),
    [
        ([], 37, Appended()),
        ([20, 21, 22], 37, Appended(((20, 23),))),
        ([20, 21, 25, 26], 37, Appended(((20, 22), (25, 27)))),
        ([20, 25, 26, 21, 22, 21], 37, Appended(((20, 23), (25, 27)))),
        ([25], 38, Appended(((25, 26),), is_cut=True)),
    ],
)
async def test_each_appended_record_counts_by_its_own_header(
    monkeypatch: pytest.MonkeyPatch, offsets: list[int], first: int, found: Appended
) -> None:
    async def read(_: Any, target: TopicPartition, ranges: list[Range]) -> AsyncGenerator[Any, None]:
        assert (target, ranges) == (ORDERS, [(first, 90)])
        yield record(1, headers=[(HEADER, b"ap/orders-0@1"), ("other", b"us/orders-0@1"), (HEADER, b"us/orders-01@1")])
        for offset in offsets:
            yield record(1, headers=[(HEADER, appended.where("us", ORDERS, offset).encode())])

    shows(monkeypatch, first, [90])
    monkeypatch.setattr(appended, "read_ranges", read)
    assert await appended.read_appended(EU, ORDERS, 37, "us", ORDERS) == found


EU: Any = SimpleNamespace(name="eu")


def shows(monkeypatch: pytest.MonkeyPatch, first: int, decided: list[int]) -> None:
    """A log from ``first`` to 90, of which each look finds a next one of ``decided``, and the last again."""

    async def list_offset(_: Any, target: Any, at: int) -> int:
        return first if at == EARLIEST else 90

    async def list_offsets(_: Any, targets: list[Any], at: int, isolation: int) -> dict[Any, int]:
        assert (targets, at, isolation) == ([ORDERS], LATEST, READ_COMMITTED)
        return {ORDERS: decided.pop(0) if len(decided) > 1 else decided[0]}

    async def open_in(_: Any, topic: str) -> str:
        return f"producer id 7 in {topic}"

    monkeypatch.setattr(appended, "list_offset", list_offset)
    monkeypatch.setattr(appended, "list_offsets", list_offsets)
    monkeypatch.setattr(appended, "open_in", open_in)
    monkeypatch.setattr(appended, "_LOOK_S", 0.001)
    monkeypatch.setattr(appended, "_OPEN_S", 0.05)


async def test_what_an_open_transaction_hides_is_not_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be appended a second time. An application's that ends soon is waited for."""
    read: list[list[Range]] = []

    async def read_ranges(_: Any, __: Any, ranges: list[Range]) -> AsyncGenerator[Any, None]:
        read.append(ranges)
        for nothing in list[Any]():
            yield nothing

    monkeypatch.setattr(appended, "read_ranges", read_ranges)
    shows(monkeypatch, 0, [60])
    with pytest.raises(RetriableError, match=r"open in orders-0, .* run this again when it has ended; producer id 7"):
        await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    assert read == []
    await appended.read_appended(EU, ORDERS, 37, "us", ORDERS, waits=False)
    shows(monkeypatch, 0, [60, 60, 95])
    await appended.read_appended(EU, ORDERS, 37, "us", ORDERS)
    assert read == [[(37, 90)]] * 2


@pytest.mark.parametrize(
    ("there", "surplus", "proven", "left", "doubtful"),
    [
        (Appended(), 0, True, [(20, 30)], 0),
        (Appended(), 3, True, [(23, 30)], 0),
        (Appended(), 3, False, [(20, 30)], 3),
        (Appended(((20, 22), (25, 27))), 0, True, [(22, 25), (27, 30)], 0),
        (Appended(((23, 25),)), 3, True, [(25, 30)], 0),
        (Appended(((23, 25),)), 3, False, [(25, 30)], 0),
        (Appended(((23, 25),)), 2, False, [(20, 23), (25, 30)], 2),
        (Appended(((23, 25), (26, 30)), is_cut=True), 0, True, [(20, 23), (25, 26)], 0),
        (Appended(((20, 25), (26, 30)), is_cut=True), 0, True, [(25, 26)], 0),
        (Appended(((23, 25),), is_cut=True), 3, False, [(25, 30)], 0),
        (Appended(is_cut=True), 0, True, [(20, 30)], 0),
    ],
)
async def test_a_hole_in_what_was_appended_is_stranded_still(
    monkeypatch: pytest.MonkeyPatch,
    site: Any,
    there: Appended,
    surplus: int,
    proven: bool,
    left: list[Range],
    doubtful: int,
) -> None:
    """Of 20 to 29, of which the flow wrote the first ``surplus`` and did not store that."""
    position = Position("orders", 0, None, 20, 4, "orders", 0, None, 37, "writer", 7, 0, 30)

    def always(found: Any) -> Any:
        async def answer(*_: Any, **__: Any) -> Any:
            return found

        return answer

    async def count(_: Any, log: TopicPartition, ranges: Sequence[Range]) -> Own | None:
        return Own(*log, ranges[0][0], ranges[-1][1] - 1, sum(end - begin for begin, end in ranges)) if ranges else None

    class Copies:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        follow = always(None)

    fakes = {
        "read_positions": always({ORDERS: position}),
        "logs_now": always({ORDERS: Log(Fate.SAME, None, 0, 30, 20)}),
        "_kept": always({ORDERS}),
        "_decided_ends": always({ORDERS: 30}),
        "extents": always({}),
        "_brought": always({}),
        "MapReader": Copies,
        "copied_ends": always({ORDERS: CopiedEnd(37 + surplus, surplus)}),
        "own_ranges": always([(20, 30)]),
        "read_appended": always(there),
        "_arrived": always(20 + surplus if surplus and proven else 0),
        "uncopied": always([]),
        "_never_copied": always([]),
        "count": count,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(stranded, name, fake)
    (found,) = await stranded.find(site)
    assert (list(found.ranges), found.doubtful) == (left, doubtful)
    assert found.is_late == (left[0][0] < there.end)
    deleted = there.is_cut and bool(there.ranges) and left[0][0] < there.ranges[0][0]
    assert found.may_be_appended == deleted, "what no header tells is no more than possible"
    up_to = await stranded.appended_up_to(site)
    assert up_to == ({ORDERS: min(left[0][0], there.end) - 1} if there.ranges else {})
