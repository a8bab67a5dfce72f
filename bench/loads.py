"""The loads: what is written once into the source cluster, by Kafka's own ``ProducerPerformance``."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

#: Distinct payloads of the JSON loads: enough that a 16 KB batch seldom holds one twice.
_PAYLOADS: Final = 20_000
_KB: Final = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """A topic to copy. ``record_bytes`` is the size of a random value; None takes JSON lines instead."""

    name: str
    title: str
    partitions: int
    replication: int
    records: int
    record_bytes: int | None
    producer: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"bench-{self.name}"

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


#: What a producer does to get batches of this size, and how many records of 1 KB a copier takes in the time of a run.
_BATCHES: Final[Mapping[str, tuple[Mapping[str, str], int]]] = {
    "one": ({"batch.size": "0", "linger.ms": "0"}, 2_000_000),
    "16k": ({"linger.ms": "20"}, 3_000_000),
    "1m": ({"batch.size": "1000000", "linger.ms": "200", "buffer.memory": "268435456"}, 3_500_000),
}


def _replicated(partitions: int, batch: str, codec: str = "none") -> Load:
    producer, records = _BATCHES[batch]
    compression = {} if codec == "none" else {"compression.type": codec}
    of_codec = "" if codec == "none" else f", {codec}"
    return Load(
        f"rf3-{partitions}-{batch}" + ("" if codec == "none" else f"-{codec}"),
        f"RF 3, {partitions} partition{'s' * (partitions > 1)}, {batch}{of_codec}",
        partitions,
        3,
        records if codec == "none" else 2 * records,
        _KB if codec == "none" else None,
        {**producer, **compression},
    )


#: ``one``: batches of one record.
LOADS: Final = (
    *(_replicated(partitions, batch) for partitions in (1, 8) for batch in _BATCHES),
    _replicated(64, "16k"),
    *(_replicated(partitions, batch, "zstd") for partitions in (1, 8) for batch in _BATCHES),
    _replicated(64, "16k", "zstd"),
    Load("rf1-small", "RF 1, 100 B", 8, 1, 80_000_000, 100),
    Load("rf1-medium", "RF 1, 1 KB", 8, 1, 12_000_000, _KB),
    Load("rf1-json", "RF 1, JSON zstd", 8, 1, 45_000_000, None, {"compression.type": "zstd"}),
)
DEFAULT: Final = ("rf3-8-one", "rf3-1-16k", "rf3-8-16k", "rf1-small")


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
