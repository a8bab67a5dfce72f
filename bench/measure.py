"""One contender copies one load: from the start of its process to the last record at the target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench.ceiling import Loops
from bench.contenders import Contender, Replicator
from bench.loads import PARTITIONS, Load
from bench.processes import Sample, TreeSampler
from bench.topics import BenchError, Contents, Topics
from bench.watch import POLL_INTERVAL_S, Seen, watch

_SETTLE_S: Final = 0.5
#: Long enough that files of deleted topics (deleted after a second) are gone.
_QUIET_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one run cost. The window reaches from the first records seen at the target to the last."""

    contender: str
    load: str
    round: int
    records: int
    wire_bytes: int
    window_s: float
    records_per_s: float
    wire_mb_per_s: float
    cpu_s_per_gb: float
    run_cpu_s: float
    memory_peak_mb: float
    first_record_s: float
    target_batch_bytes: float
    stop_s: float
    exit_code: int
    #: How busy the machine was just before, with the brokers idle: what others took.
    busy_before_percent: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the destination broker took from loops that only produce."""

    load: str
    round: int
    loops: int
    records_per_s: float
    wire_mb_per_s: float


@dataclass(frozen=True, slots=True)
class Bed:
    """The two clusters of a run and what the source holds."""

    source: str
    target: str
    contents: Mapping[str, Contents]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Observed:
    """A run as seen from outside."""

    started_s: float
    first: Seen[Sample]
    last: Seen[Sample]
    run_cpu_s: float
    memory_peak_bytes: int
    stop_s: float
    exit_code: int


async def measure(contender: Contender, load: Load, number: int, bed: Bed) -> Result:
    """Runs ``contender`` once on a target without topics. Raises BenchError if the copy is not complete."""
    await clear(bed)
    busy_before_percent = await asyncio.to_thread(psutil.cpu_percent, _QUIET_LOOK_S)
    held = bed.contents[load.topic]
    replicator = contender.replicator(bed.source, bed.target, load, bed.folder / f"{load.name}-{number}")
    run = await _observe(replicator, bed.target, load, held)
    async with await Topics.open(bed.target) as target:
        copied = await target.contents(f"us.{load.topic}", PARTITIONS)
    _check(contender, load, held, copied)
    window_s = max(run.last.at_s - run.first.at_s, POLL_INTERVAL_S)
    records = run.last.records - run.first.records
    window_bytes = held.bytes * records / held.records
    return Result(
        contender=contender.name,
        load=load.name,
        round=number,
        records=copied.records,
        wire_bytes=held.bytes,
        window_s=window_s,
        records_per_s=records / window_s,
        wire_mb_per_s=window_bytes / 1e6 / window_s,
        cpu_s_per_gb=(run.last.look.cpu_s - run.first.look.cpu_s) / (window_bytes / 1e9) if records else 0.0,
        run_cpu_s=run.run_cpu_s,
        memory_peak_mb=run.memory_peak_bytes / 1e6,
        first_record_s=run.first.at_s - run.started_s,
        target_batch_bytes=copied.batch_bytes,
        stop_s=run.stop_s,
        exit_code=run.exit_code,
        busy_before_percent=busy_before_percent,
    )


async def _observe(replicator: Replicator, bootstrap: str, load: Load, held: Contents) -> _Observed:
    """Starts the replicator, waits until the target holds everything, and stops it."""
    started_s = time.monotonic()
    with replicator:
        sampler = TreeSampler(replicator.pid)
        sampler.start()
        try:
            async with await Topics.open(bootstrap) as target:
                failure = partial(_failure, replicator)
                first, last = await watch(target, f"us.{load.topic}", held, sampler.sample, failure)
                await asyncio.sleep(_SETTLE_S)
            run_cpu_s = sampler.sample().cpu_s
            stopping_s = time.monotonic()
            exit_code = await asyncio.to_thread(replicator.stop)
            stop_s = time.monotonic() - stopping_s
        finally:
            samples = sampler.stop()
    peak_bytes = max(sample.pss_bytes for sample in samples)
    return _Observed(started_s, first, last, run_cpu_s, peak_bytes, stop_s, exit_code)


async def measure_ceiling(load: Load, number: int, bed: Bed, loops: int) -> Ceiling:
    """Produces the load's batches from ``loops`` processes into a fresh topic."""
    await clear(bed)
    held = bed.contents[load.topic]
    topic = f"us.{load.topic}"
    async with await Topics.open(bed.target) as target:
        await target.create(topic, PARTITIONS)
        with Loops(bed.source, bed.target, load, topic, loops) as processes:
            processes.go()
            first, last = await watch(target, topic, held, lambda: None, processes.failure)
    window_s = max(last.at_s - first.at_s, POLL_INTERVAL_S)
    records_per_s = (last.records - first.records) / window_s
    return Ceiling(
        load.name,
        number,
        loops,
        records_per_s,
        records_per_s * held.bytes / held.records / 1e6,
    )


async def clear(bed: Bed) -> None:
    """Removes what earlier runs left: every topic of the target, and of the source all but the loads."""
    async with (
        await Topics.open(bed.target) as target,
        await Topics.open(bed.source) as source,
    ):
        await target.delete({name for name in await target.names() if not name.startswith("__")})
        kept = bed.contents.keys()
        await source.delete({name for name in await source.names() if name not in kept and not name.startswith("__")})


def _failure(replicator: Replicator) -> str | None:
    return None if replicator.is_running else f"the replicator ended by itself: {replicator.tail()}"


def _check(contender: Contender, load: Load, held: Contents, copied: Contents) -> None:
    if copied.records != held.records:
        raise BenchError(
            f"{contender.title} on {load.title}: {copied.records} records at the target, {held.records} at the source"
        )
    if copied.batch_bytes < contender.least_batch_bytes:
        raise BenchError(
            f"{contender.title} on {load.title}: its batches are {copied.batch_bytes:.0f} B at the target, "
            f"so its tuning has no effect (more than {contender.least_batch_bytes} B expected); "
            f"look at {contender.file.name}"
        )
