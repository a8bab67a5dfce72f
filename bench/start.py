"""How long a contender takes from its start to its first record, with files and classes in the machine's memory."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from bench.bed import Bed
from bench.contenders import Contender
from bench.loads import Start
from bench.measure import failure_of, first_records, quiet_look
from bench.rows import Started


async def measure_start(contender: Contender, load: Start, number: int, bed: Bed, folder: Path) -> Started:
    """Start it on a target without topics, and stop it at its first record. Raises BenchError if none comes."""
    await bed.clear({load.topic})
    busy_before_percent = await quiet_look()
    replicator = contender.replicator(bed.ways_in(load), load, folder)
    began_s = time.monotonic()
    with replicator:
        first_s = await first_records(bed.target, f"us.{load.topic}", load, partial(failure_of, replicator))
        stopping_s = time.monotonic()
        await asyncio.to_thread(replicator.stop)
        return Started(
            load=load.name,
            contender=contender.name,
            round=number,
            first_record_s=first_s - began_s,
            stop_s=time.monotonic() - stopping_s,
            busy_before_percent=busy_before_percent,
        )
