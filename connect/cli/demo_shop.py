"""The demo's sample orders, their producer, and the display of the progress, as a live table or as lines."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import zlib
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final, NamedTuple, Protocol, Self

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connect.cli.rates import BATCH_KINDS, FlowRates, TopicRates, bytes_text, flow_line, troubles
from connect.core.errors import RetriableError
from connect.kafka.concurrency import Scope
from connect.kafka.security.connection_settings import ConnectionSettings

#: Records generated in one turn of the loop, a few milliseconds, so that the flow's tasks are not delayed.
_STEP_RECORDS: Final = 400
#: Records sent in a round, enough to fill batches as a busy producer does.
_ROUND_RECORDS: Final = 4000
#: Rounds that may be unacknowledged while the next ones are generated.
_ROUNDS_IN_FLIGHT: Final = 4
_TICK_S: Final = 0.1


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
            lines = [
                {"article": chance.choice(_ARTICLES), "count": chance.randrange(1, 5)}
                for _ in range(chance.randrange(1, 4))
            ]
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
    """A writer of sample records to the source, with one idempotent producer per codec.

    ``written`` counts acknowledged records per topic and partition.
    """

    settings: ConnectionSettings
    seed: int = 0
    written: Counter[tuple[str, int]] = field(default_factory=Counter)
    _producers: dict[str, AIOKafkaProducer] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return self.written.total()

    async def write(self, stop: asyncio.Event, *, records: int | None, rate: int | None) -> None:
        """Write until ``records`` are acknowledged (None: until ``stop``), ``rate`` a second (None: no limit)."""
        async with AsyncExitStack() as stack:
            for codec in {topic.codec for topic in TOPICS}:
                producer = AIOKafkaProducer(
                    **self.settings.aiokafka_arguments(), compression_type=codec, enable_idempotence=True
                )
                await producer.start()
                stack.push_async_callback(producer.stop)
                self._producers.update({topic.name: producer for topic in TOPICS if topic.codec == codec})
            await self._write(stop, records, rate)

    async def _write(self, stop: asyncio.Event, records: int | None, rate: int | None) -> None:
        source = sample_records(self.seed)
        clock = asyncio.get_running_loop().time
        began, made = clock(), 0
        in_flight: list[asyncio.Task[None]] = []
        async with Scope("sample orders") as scope:
            while not stop.is_set() and (records is None or made < records):
                left = _ROUND_RECORDS if records is None else min(_ROUND_RECORDS, records - made)
                due = left if rate is None else min(left, int((clock() - began) * rate) - made)
                if due > 0:
                    made += due
                    chunk = await _take(source, due)
                    in_flight.append(scope.spawn(await self._send(chunk), "sample orders"))
                if len(in_flight) >= _ROUNDS_IN_FLIGHT:
                    await in_flight.pop(0)
                # The delay lets enough records become due to fill batches.
                await asyncio.sleep(_TICK_S if due < left else 0)
            await asyncio.gather(*in_flight)

    async def _send(self, records: Sequence[SampleRecord]) -> Coroutine[None, None, None]:
        """Hand one round to the producers as whole batches, in order; return a coroutine that waits for the answers."""
        by_partition: dict[tuple[str, int], list[SampleRecord]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record)
        timestamp_ms = int(time.time() * 1000)
        answers: list[asyncio.Future[object]] = []
        for (topic, partition), chunk in by_partition.items():
            producer = self._producers[topic]
            for batch in _batches(producer, chunk, timestamp_ms):
                answers.append(await producer.send_batch(batch, topic, partition=partition))
        return self._acknowledged(answers, {partition: len(chunk) for partition, chunk in by_partition.items()})

    async def _acknowledged(
        self, answers: Sequence[asyncio.Future[object]], counts: Mapping[tuple[str, int], int]
    ) -> None:
        try:
            await asyncio.gather(*answers)
        except KafkaError as error:
            text = f"the source refused sample orders: {type(error).__name__}: {error}"
            raise RetriableError(text) from error
        self.written.update(counts)


async def _take(source: Iterator[SampleRecord], records: int) -> list[SampleRecord]:
    chunk: list[SampleRecord] = []
    while len(chunk) < records:
        chunk.extend(islice(source, min(_STEP_RECORDS, records - len(chunk))))
        await asyncio.sleep(0)
    return chunk


def _batches(producer: AIOKafkaProducer, records: Sequence[SampleRecord], timestamp_ms: int) -> Iterator[BatchBuilder]:
    batch = producer.create_batch()
    for record in records:
        appended = batch.append(key=record.key, value=record.value, timestamp=timestamp_ms, headers=record.headers)
        if appended is None:  # full
            yield batch
            batch = producer.create_batch()
            batch.append(key=record.key, value=record.value, timestamp=timestamp_ms, headers=record.headers)
    yield batch


REFRESH_PER_S: Final = 4
#: A terminal of this width has room for every figure.
WIDE_COLUMNS: Final = 106
_PLAIN_INTERVAL_S: Final = 2.0
_PLAIN_UNCHANGED_S: Final = 10.0


class View(Protocol):
    """A display of the progress, and a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def say(self, text: str) -> None:
        """Print a sentence that stays."""

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        """Show the current rates; ``status`` says what the demo does."""


class PlainView:
    """Lines for a pipe or a log: one per flow every two seconds, less often while nothing changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = float("-inf")
        self._shown: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        lines = [f"{flow_line(flow)} ({status})" for flow in flows]
        if now_s - self._shown_s < (_PLAIN_UNCHANGED_S if lines == self._shown else _PLAIN_INTERVAL_S):
            return
        self._shown_s, self._shown = now_s, lines
        for line in lines:
            self.say(line)


class LiveView:
    """A table that is redrawn in place, below the sentences."""

    def __init__(self, console: Console, notes: LastWarning) -> None:
        self._console = console
        self._notes = notes
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, auto_refresh=False)
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        if self._started:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def show(self, now_s: float, flows: Sequence[FlowRates], status: str) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        wide = self._console.width >= WIDE_COLUMNS
        self._live.update(picture(flows, status, self._notes.text, wide=wide), refresh=True)


def picture(flows: Sequence[FlowRates], status: str, note: str = "", *, wide: bool = True) -> RenderableType:
    """Draw the tables of all flows with a status line below them; ``wide`` shows all columns."""
    parts: list[RenderableType] = [_table(flow, wide) for flow in flows]
    parts.append(Text(f"  {status}", style="dim"))
    if note:
        parts.append(Text(f"  {note}", style="yellow", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _table(flow: FlowRates, wide: bool) -> Table:
    source, target = flow.flow
    title = Text.assemble(
        (f"  {source} ", "bold"), ("──▶", "bold yellow"), (f" {target}", "bold"), f"   {flow.state}", "   Spark epoch "
    )
    title.append(str(flow.spark_epoch), "bold")
    title.append(troubles(flow), "yellow")
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_footer=True)
    table.padding, table.pad_edge = (0, 0, 0, 1), False
    table.add_column("topic", "total", no_wrap=True)
    if wide:
        table.add_column("mirrored as", "", style="cyan", no_wrap=True)
        table.add_column("parts", str(sum(topic.partitions for topic in flow.topics)), justify="right")
        table.add_column("records", f"{flow.records:,}", justify="right", min_width=9, no_wrap=True)
    # Minimum widths keep the table still while figures grow.
    for name, width, total in (
        ("records/s", 9, f"{flow.records_per_s:,.0f}"),
        ("bytes/s", 7, bytes_text(flow.bytes_per_s)),
        ("behind", 6, f"{flow.lag_records:,}"),
        ("ms", 5, f"{flow.lag_ms:,}"),
        *((kind, 7, f"{flow.batches(kind):,}") for kind in BATCH_KINDS),
    ):
        table.add_column(name, total, justify="right", min_width=width, footer_style="bold", no_wrap=True)
    for topic in flow.topics:
        copy = [topic.target_topic, str(topic.partitions), f"{topic.records:,}"] if wide else []
        table.add_row(topic.source_topic, *copy, *_figures(topic))
    return table


def _figures(topic: TopicRates) -> list[str | Text]:
    return [
        f"{topic.records_per_s:,.0f}",
        bytes_text(topic.bytes_per_s),
        f"{topic.lag_records:,}",
        f"{topic.lag_ms:,}",
        *(Text(f"{topic.batches.get(kind, 0):,}", "" if topic.batches.get(kind) else "dim") for kind in BATCH_KINDS),
    ]


class LastWarning(logging.Handler):
    """A log handler that keeps the last warning, for the line below the table."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = " ".join(record.getMessage().split())
