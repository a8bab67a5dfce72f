"""The loads: what is written into the source cluster, how the clusters are reached, and what is looked at."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

#: Distinct payloads of the JSON loads: enough that a 16 KB batch seldom holds one twice.
_PAYLOADS: Final = 20_000
_KB: Final = 1024
_TUNED: Final = ("mm2-tuned", "heliograph")
_BOTH: Final = ("mm2-default", "mm2-tuned", "heliograph")
#: What a tuned producer gains in throughput it loses in latency.
_AS_SHIPPED: Final = ("mm2-default", "heliograph")

Far = Literal["", "source", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic to copy. ``record_bytes`` is the size of a random value; None takes JSON lines instead. ``data`` names
    the topic: loads of the same data share what was written. ``far`` names the cluster that is reached through a proxy,
    with ``round_trip_ms``. ``listener``: of clusters that ask for TLS and SCRAM, or for neither."""

    name: str
    title: str
    about: str
    group: str
    partitions: int
    replication: int = 1
    records: int
    record_bytes: int | None = _KB
    producer: Mapping[str, str] = field(default_factory=dict)
    data: str = ""
    far: Far = ""
    round_trip_ms: float = 0
    listener: Literal["", "plain", "SCRAM_TLS"] = ""
    contenders: Sequence[str] = _TUNED
    has_ceiling: bool = False

    @property
    def topic(self) -> str:
        return f"bench-{self.data or self.name}"

    @property
    def is_secured(self) -> bool:
        return bool(self.listener)

    def scaled(self, scale: float) -> Load:
        return replace(self, records=max(self.partitions * 1000, int(self.records * scale)))

    def arguments(self, bootstrap: str, payload_file: Path) -> list[str]:
        """Arguments of ``org.apache.kafka.tools.ProducerPerformance`` that write this load at full speed."""
        size = (
            ["--payload-file", str(payload_file)]
            if self.record_bytes is None
            else ["--record-size", str(self.record_bytes)]
        )
        properties = {"acks": "1", **self.producer}
        written = {"--bootstrap-server": bootstrap, "--topic": self.topic, "--num-records": str(self.records)}
        pairs = [part for pair in written.items() for part in pair]
        return [*pairs, *size, "--throughput", "-1", "--command-property", *(f"{k}={v}" for k, v in properties.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """Records at a steady rate, and how long each takes. ``has_company``: next to two busy loops."""

    name: str
    title: str
    about: str
    group: str = "latency"
    replication: int
    records_per_s: int
    has_company: bool
    partitions: int = 4
    is_secured: bool = False
    contenders: Sequence[str] = _AS_SHIPPED

    @property
    def topic(self) -> str:
        return f"bench-{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A topic that holds some records, and how long it takes until the first is copied."""

    name: str = "start"
    title: str = "start, warm"
    about: str = "from the start of the process to the first record at the target; a start before does not count"
    group: str = "start"
    replication: int = 1
    partitions: int = 8
    is_secured: bool = False
    contenders: Sequence[str] = _TUNED

    @property
    def topic(self) -> str:
        return f"bench-{self.name}"


AnyLoad = Load | Paced | Start

#: What a producer does to get batches of this size.
_BATCHES: Final[Mapping[str, Mapping[str, str]]] = {
    "one": {"batch.size": "0", "linger.ms": "0"},
    "16k": {"linger.ms": "20"},
    "1m": {"batch.size": "1000000", "linger.ms": "200", "buffer.memory": "268435456"},
}
#: How many records a copier needs by codec, batch and partitions, for 36 s of values of 1 KB, and for at least 22 s of
#: JSON lines in zstd, which are copied many times as fast; single ones of these take longest to write.
_RECORDS: Final = {
    ("none", "one"): {1: 6_300_000, 8: 8_200_000},
    ("none", "16k"): {1: 7_400_000, 8: 9_000_000, 64: 5_600_000},
    ("none", "1m"): {1: 8_000_000, 8: 9_000_000},
    ("zstd", "one"): {1: 6_200_000, 8: 10_000_000},
    ("zstd", "16k"): {1: 24_000_000, 8: 30_000_000, 64: 40_000_000},
    ("zstd", "1m"): {1: 58_000_000, 8: 45_000_000},
}
_IN_WORDS: Final = {"one": "one record a batch", "16k": "batches of 16 KB", "1m": "batches of 1 MB"}


def _of(partitions: int) -> str:
    return f"{partitions} partition{'s' * (partitions > 1)}"


def _replicated(partitions: int, batch: str, codec: str = "none") -> Load:
    producer, is_plain = _BATCHES[batch], codec == "none"
    return Load(
        name=f"rf3-{partitions}-{batch}" + ("" if is_plain else f"-{codec}"),
        title=f"RF 3, {_of(partitions)}, {batch}" + ("" if is_plain else f", {codec}"),
        about=f"{_of(partitions)}, {_IN_WORDS[batch]}, "
        + ("random values of 1 KB" if is_plain else f"JSON lines of 230 B in {codec}")
        + ", three target brokers",
        group="replicated",
        partitions=partitions,
        replication=3,
        records=_RECORDS[codec, batch][partitions],
        record_bytes=_KB if is_plain else None,
        producer=producer if is_plain else {**producer, "compression.type": codec},
        has_ceiling=True,
    )


def _single(name: str, title: str, records: int, record_bytes: int | None, data: str = "", **producer: str) -> Load:
    values = "JSON lines of 230 B in zstd" if record_bytes is None else f"random values of {record_bytes} B"
    return Load(
        name=name,
        title=f"RF 1, {title}",
        about=f"8 partitions, batches of 16 KB, {values}, one target broker",
        group="single",
        partitions=8,
        records=records,
        record_bytes=record_bytes,
        producer={key.replace("_", "."): value for key, value in producer.items()},
        data=data,
        has_ceiling=True,
    )


def _tiny(partitions: int) -> Load:
    return Load(
        name=f"tiny-{partitions}-100ms",
        title=f"1 to 5 records a batch, 100 ms to the target, {_of(partitions)}",
        about=f"{_of(partitions)}, batches of 1 to 5 records of 100 B, a round trip of 100 ms to the target",
        group="tiny",
        partitions=partitions,
        records=32_000_000 if partitions == 1 else 61_000_000,
        record_bytes=100,
        producer={"batch.size": "560", "linger.ms": "5"},
        far="target",
        round_trip_ms=100,
        contenders=_BOTH,
    )


def _far(far: Far, partitions: int, round_trip_ms: int) -> Load:
    return Load(
        name=f"far-{far}-{partitions}-{round_trip_ms}ms",
        title=f"{far} {round_trip_ms} ms away, {_of(partitions)}",
        about=f"{_of(partitions)}, batches of 16 KB, values of 1 KB, a round trip of {round_trip_ms} ms to the {far} "
        "through a proxy",
        group="far",
        partitions=partitions,
        records=5_000_000 if partitions == 1 else 12_500_000,
        producer=_BATCHES["16k"],
        data=f"far-{partitions}",
        far=far,
        round_trip_ms=round_trip_ms,
        contenders=("heliograph",),
    )


def _secured(listener: Literal["plain", "SCRAM_TLS"]) -> Load:
    name, title = ("tls", "TLS and SCRAM") if listener == "SCRAM_TLS" else ("plaintext", "plaintext")
    return Load(
        name=f"secured-{name}",
        title=f"{title} at both clusters",
        about=f"8 partitions, batches of 16 KB, values of 1 KB, {title} to both clusters",
        group="secured",
        partitions=8,
        records=9_000_000,
        producer=_BATCHES["16k"],
        data="secured",
        listener=listener,
        contenders=("heliograph",),
    )


def _paced(replication: int, records_per_s: int, has_company: bool) -> Paced:
    company = ", next to two busy loops" if has_company else ""
    return Paced(
        name=f"latency-rf{replication}-{records_per_s}" + "-busy" * has_company,
        title=f"RF {replication}, {records_per_s:,} records/s{company}",
        about=f"4 partitions, {records_per_s:,} records/s of 100 B, RF {replication}, epochs of 60 s{company}",
        replication=replication,
        records_per_s=records_per_s,
        has_company=has_company,
    )


LOADS: Final[Sequence[AnyLoad]] = (
    *(_replicated(partitions, batch) for partitions in (1, 8) for batch in _BATCHES),
    _replicated(64, "16k"),
    *(_replicated(partitions, batch, "zstd") for partitions in (1, 8) for batch in _BATCHES),
    _replicated(64, "16k", "zstd"),
    _single("rf1-small", "100 B", 90_000_000, 100),
    _single("rf1-json", "JSON zstd", 66_000_000, None, compression_type="zstd"),
    _single("rf1-medium", "1 KB", 12_500_000, _KB, data="far-8", linger_ms="20"),
    *(_far(far, 8, ms) for far in ("source", "target") for ms in (0, 100)),
    *(_far(far, 1, 100) for far in ("source", "target")),
    *(_tiny(partitions) for partitions in (1, 8)),
    _secured("plain"),
    _secured("SCRAM_TLS"),
    *(_paced(replication, rate, busy) for replication in (1, 3) for rate in (200, 2000) for busy in (False, True)),
    Start(),
)
DEFAULT: Final = ("rf3-8-one", "rf3-8-16k", "latency-rf1-2000", "start")


def write_payloads(path: Path, *, seed: int = 20261101) -> None:
    """Orders as JSON lines of about 230 B, the same ones at every run."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as out:
        for _ in range(_PAYLOADS):
            out.write(json.dumps(_order(draw), separators=(",", ":")) + "\n")


def _order(draw: random.Random) -> dict[str, object]:
    """About 230 B as JSON, about 62 B in a zstd batch: ids and sums are random, the rest repeats."""
    return {
        "order_id": f"{draw.getrandbits(64):016x}",
        "trace_id": f"{draw.getrandbits(96):024x}",
        "customer": f"customer-{draw.randrange(50_000):05d}",
        "created_at": f"2026-11-{draw.randint(1, 28):02d}T{draw.randint(0, 23):02d}:30:00Z",
        "status": draw.choice(("new", "paid", "packed", "shipped", "returned")),
        "currency": draw.choice(("EUR", "USD", "GBP", "JPY")),
        "total": round(draw.uniform(1, 900), 2),
        "items": [{"sku": f"sku-{draw.randrange(9999):04d}", "quantity": draw.randint(1, 9)}],
    }
