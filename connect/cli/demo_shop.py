"""The demo's sample orders, their producer, and a consumer group that reads them."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final, NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from connect.core.errors import RetriableError
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.security.connection_settings import ConnectionSettings

#: Records generated in one turn of the loop, a few milliseconds, so that the flow's tasks are not delayed.
_STEP_RECORDS: Final = 400
#: Records sent in a round, enough to fill batches as a busy producer does.
_ROUND_RECORDS: Final = 4000
#: Rounds that may be unacknowledged while the next ones are generated.
_ROUNDS_IN_FLIGHT: Final = 4
_TICK_S: Final = 0.1
_READ_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SampleTopic:
    """A topic of the demo; ``codec`` None is uncompressed, ``weight`` its share of the records."""

    name: str
    partitions: int
    codec: str | None
    weight: int


TOPICS: Final = (
    SampleTopic("clicks", 8, None, 8),
    SampleTopic("orders", 6, "zstd", 6),
    SampleTopic("payments", 4, "lz4", 3),
    SampleTopic("inventory", 2, "snappy", 2),
    SampleTopic("invoices", 1, "gzip", 1),
)
_ARTICLES: Final = ("lamp", "mirror", "tripod", "telescope", "sundial", "compass", "lens", "prism", "map", "notebook")
_CITIES: Final = ("Lisbon", "Porto", "Sevilla", "Lyon", "Torino", "Graz", "Leipzig", "Gdansk", "Aarhus", "Turku")


class SampleRecord(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def sample_records(seed: int) -> Iterator[SampleRecord]:
    """Generate records without end, the same for the same seed."""
    chance = random.Random(seed)
    topics = [topic for topic in TOPICS for _ in range(topic.weight)]
    for number in count():
        topic = chance.choice(topics)
        customer = f"customer-{chance.randrange(5000):04d}".encode()
        yield SampleRecord(
            topic.name,
            # By key, so that a customer's records keep their order.
            zlib.crc32(customer) % topic.partitions,
            customer,
            orjson.dumps(_value(topic.name, number, chance)),
            [("shop", b"web" if number % 3 else b"app"), ("trace", b"%016x" % chance.getrandbits(64))],
        )


def _value(topic: str, number: int, chance: random.Random) -> dict[str, Any]:
    article = chance.choice(_ARTICLES)
    match topic:
        case "clicks":
            return {"click": number, "page": f"/articles/{article}", "ms_on_page": chance.randrange(60_000)}
        case "orders":
            orders = range(chance.randrange(1, 4))
            lines = [{"article": chance.choice(_ARTICLES), "count": chance.randrange(1, 5)} for _ in orders]
            total = chance.randrange(500, 90_000) / 100
            return {"order": number, "city": chance.choice(_CITIES), "lines": lines, "total": total, "currency": "EUR"}
        case "payments":
            return {"payment": number, "amount": chance.randrange(500, 90_000) / 100, "method": "card", "state": "paid"}
        case "inventory":
            return {"movement": number, "article": article, "change": chance.randrange(-5, 20)}
        case _:
            return {"invoice": number, "net": chance.randrange(500, 90_000) / 100, "vat_percent": 23}


@dataclass(slots=True)
class OrderWriter:
    """A writer of sample records to the source, with one idempotent producer per codec. ``records`` counts those that
    are acknowledged."""

    settings: ConnectionSettings
    records: int = 0
    _producers: dict[str, AIOKafkaProducer] = field(default_factory=dict)

    async def write(self, stop: asyncio.Event, rate: int) -> None:
        """Write ``rate`` records a second until ``stop``, and until all are acknowledged."""
        async with AsyncExitStack() as stack:
            for codec in {topic.codec for topic in TOPICS}:
                arguments = self.settings.aiokafka_arguments()
                producer = AIOKafkaProducer(**arguments, compression_type=codec, enable_idempotence=True)
                await producer.start()
                stack.push_async_callback(producer.stop)
                self._producers.update({topic.name: producer for topic in TOPICS if topic.codec == codec})
            await self._write(stop, rate)

    async def _write(self, stop: asyncio.Event, rate: int) -> None:
        source = sample_records(0)
        clock = asyncio.get_running_loop().time
        began, made = clock(), 0
        in_flight: list[asyncio.Task[None]] = []
        async with Scope("sample orders") as scope:
            while not stop.is_set():
                due = min(_ROUND_RECORDS, int((clock() - began) * rate) - made)
                if due > 0:
                    made += due
                    chunk = await _take(source, due)
                    in_flight.append(scope.spawn(await self._send(chunk), "sample orders"))
                if len(in_flight) >= _ROUNDS_IN_FLIGHT:
                    await in_flight.pop(0)
                # The delay lets enough records become due to fill batches.
                await asyncio.sleep(_TICK_S if due < _ROUND_RECORDS else 0)
            await asyncio.gather(*in_flight)

    async def _send(self, records: Sequence[SampleRecord]) -> Coroutine[None, None, None]:
        """Hand one round to the producers as whole batches, in order; return a coroutine that waits for the answers."""
        by_partition: dict[tuple[str, int], list[SampleRecord]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
        timestamp_ms = wall_ms()
        answers: list[asyncio.Future[object]] = []
        for (topic, partition), chunk in by_partition.items():
            producer = self._producers[topic]
            for batch in _batches(producer, chunk, timestamp_ms):
                answers.append(await producer.send_batch(batch, topic, partition=partition))
        return self._acknowledged(answers, len(records))

    async def _acknowledged(self, answers: Sequence[asyncio.Future[object]], records: int) -> None:
        try:
            await asyncio.gather(*answers)
        except KafkaError as error:
            text = f"the source refused sample orders: {type(error).__name__}: {error}"
            raise RetriableError(text) from error
        self.records += records


async def _take(source: Iterator[SampleRecord], records: int) -> list[SampleRecord]:
    chunk: list[SampleRecord] = []
    while len(chunk) < records:
        chunk.extend(islice(source, min(_STEP_RECORDS, records - len(chunk))))
        await asyncio.sleep(0)
    return chunk


def _batches(producer: AIOKafkaProducer, records: Sequence[SampleRecord], timestamp_ms: int) -> Iterator[BatchBuilder]:
    batch = producer.create_batch()
    for record in records:
        fields = {"key": record.key, "value": record.value, "timestamp": timestamp_ms, "headers": record.headers}
        if batch.append(**fields) is None:  # full
            yield batch
            batch = producer.create_batch()
            batch.append(**fields)
    yield batch


@dataclass(frozen=True, slots=True)
class GroupReader:
    """A consumer group that reads a topic of orders."""

    group: str
    topic: str

    async def read_and_commit(self, settings: ConnectionSettings, records: int = 500) -> dict[int, int]:
        """Read some records and commit; return the order that is next, by partition."""
        async with self._consumer(settings) as consumer:
            count = 0
            while count < records:
                count += sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=records)).values()))
            await consumer.commit()
            return await _first_orders(consumer, {one.partition for one in consumer.assignment()})

    async def first_of_each(self, settings: ConnectionSettings, partitions: set[int]) -> dict[int, int]:
        """Return the first order that the group gets of each partition."""
        async with self._consumer(settings) as consumer:
            return await _first_orders(consumer, partitions)

    def _consumer(self, settings: ConnectionSettings) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            self.topic,
            **settings.aiokafka_arguments(),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )


async def _first_orders(consumer: AIOKafkaConsumer, partitions: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    async with asyncio.timeout(_READ_S):
        while found.keys() < partitions:
            for partition, records in (await consumer.getmany(timeout_ms=1000, max_records=100)).items():
                found.setdefault(partition.partition, orjson.loads(records[0].value)["order"])
    return found
