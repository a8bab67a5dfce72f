"""The loads: what is written once into the source cluster, by Kafka's own ``ProducerPerformance``."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

PARTITIONS: Final = 8
#: Distinct payloads of the JSON load: enough that a 16 KB batch seldom holds one twice.
_PAYLOADS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Load:
    """A topic to copy. ``record_bytes`` is the size of a random value; None takes JSON lines instead."""

    name: str
    title: str
    records: int
    record_bytes: int | None
    producer: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"bench-{self.name}"

    def scaled(self, scale: float) -> Load:
        return replace(self, records=max(PARTITIONS * 1000, int(self.records * scale)))

    def arguments(self, bootstrap: str, payload_file: Path) -> list[str]:
        """Arguments of ``org.apache.kafka.tools.ProducerPerformance`` that write this load at full speed."""
        size = (
            ["--payload-file", str(payload_file)]
            if self.record_bytes is None
            else ["--record-size", str(self.record_bytes)]
        )
        properties = {"acks": "all", **self.producer}
        return [
            "--bootstrap-server",
            bootstrap,
            "--topic",
            self.topic,
            "--num-records",
            str(self.records),
            *size,
            "--throughput",
            "-1",
            "--command-property",
            *(f"{key}={value}" for key, value in properties.items()),
        ]


#: Producer default batches of 16 KB throughout.
LOADS: Final = (
    Load("small", "100 B uncompressed", 3_000_000, 100),
    Load("medium", "1 KB uncompressed", 1_000_000, 1024),
    Load("json", "JSON zstd", 2_000_000, None, {"compression.type": "zstd"}),
)


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
