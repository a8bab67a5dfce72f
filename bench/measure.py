"""One contender copies one load, for a while: a window of steady copying, behind the start and the ramp; or only to
its first record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import psutil

from bench.bed import Bed, BenchError, Contents, Side
from bench.ceiling import Loops, Variant
from bench.contenders import Contender, Replicator
from bench.loads import AnyLoad, Load, Start
from bench.processes import TreeSampler
from bench.rows import Ceiling, Result, Started

#: Long enough that files of deleted topics (deleted after a second) are gone.
_QUIET_LOOK_S: Final = 2.0
_POLL_S: Final = 0.2
_FIRST_POLL_S: Final = 0.025
_FIRST_DEADLINE_S: Final = 120.0
#: So many times smaller than its records may a compressed batch be.
_COMPRESSED_TO: Final = 4
_CEILING_RAMP_S: Final = 3.0

Look = TypeVar("Look")


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds: how long a run is left alone behind its first record, and how long it is measured then."""

    ramp_s: float = 8.0
    length_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Seen(Generic[Look]):
    """The ends of the target's partitions at one moment (``time.monotonic()``), and what the caller looked at then."""

    at_s: float
    ends: Mapping[int, int]
    look: Look

    @property
    def records(self) -> int:
        return sum(self.ends.values())


async def measure(
    contender: Contender, load: Load, number: int, bed: Bed, held: Contents, window: Window, folder: Path
) -> Result:
    """Run ``contender`` once on a target without topics. Raises BenchError if its window cannot be measured."""
    await bed.clear({load.topic})
    busy_before_percent = await quiet_look()
    replicator = contender.replicator(bed.ways_in(load), load, folder)
    topic = f"us.{load.topic}"
    started_s = time.monotonic()
    with ExitStack() as running:
        running.enter_context(replicator)
        sampler = TreeSampler(replicator.pid)
        sampler.start()
        running.callback(sampler.stop)

        def look() -> tuple[float, float, float]:
            return sampler.sample().cpu_s, _cpu_s(bed.source), _cpu_s(bed.target)

        failure = partial(failure_of, replicator)
        first_s, begin, end = await _steady(bed.target, topic, load, held, window, look, failure)
        copied = await bed.target.contents(topic, load.partitions, begin.ends)
        stopping_s = time.monotonic()
        await asyncio.to_thread(replicator.stop)
        stop_s = time.monotonic() - stopping_s
        samples = sampler.stop()
    check_batches(contender, load, copied)
    records, window_s = end.records - begin.records, end.at_s - begin.at_s
    gigabytes = records * held.record_bytes / 1e9
    ours, source, target = ((after - before) / gigabytes for before, after in zip(begin.look, end.look, strict=True))
    return Result(
        contender=contender.name,
        load=load.name,
        round=number,
        window_s=window_s,
        records_per_s=records / window_s,
        wire_mb_per_s=gigabytes * 1000 / window_s,
        cpu_s_per_gb=ours,
        source_cpu_s_per_gb=source,
        target_cpu_s_per_gb=target,
        memory_peak_mb=max(sample.pss_bytes for sample in samples) / 1e6,
        first_record_s=first_s - started_s,
        target_batch_bytes=copied.batch_bytes,
        stop_s=stop_s,
        busy_before_percent=busy_before_percent,
        batches_of_window=True,
    )


async def quiet_look() -> float:
    """How busy the machine is, with the brokers idle: what others take of it, in percent."""
    return await asyncio.to_thread(psutil.cpu_percent, _QUIET_LOOK_S)


async def _steady(
    target: Side,
    topic: str,
    load: Load,
    held: Contents,
    window: Window,
    look: Callable[[], Look],
    failure: Callable[[], str | None],
) -> tuple[float, _Seen[Look], _Seen[Look]]:
    """When the first record was seen, and both ends of the window. ``failure`` says why nothing more will come, None
    while there is hope."""
    first_s = await first_records(target, topic, load, failure)
    await asyncio.sleep(window.ramp_s)
    begin = await _seen(target, topic, load, look)
    end = begin
    while end.at_s - begin.at_s < window.length_s:
        await asyncio.sleep(min(_POLL_S, max(begin.at_s + window.length_s - end.at_s, 0.001)))
        now = await _seen(target, topic, load, look)
        if why := failure():
            raise BenchError(f"{load.title}: stopped at {now.records} records: {why}")
        if now.records >= held.records:
            break  # it has come to rest some time since the look before
        end = now
    if end.at_s - begin.at_s < window.length_s / 2:
        raise BenchError(f"{load.title}: all {held.records} records were copied too soon; give it more (--scale)")
    if end.records == begin.records:
        raise BenchError(f"{load.title}: nothing was copied in the window")
    return first_s, begin, end


async def first_records(
    target: Side, topic: str, load: AnyLoad, failure: Callable[[], str | None], *, records: int = 1
) -> float:
    """Wait for the first ``records`` at the target; when they were seen (``time.monotonic()``)."""
    until_s = time.monotonic() + _FIRST_DEADLINE_S
    while (found := await target.records(topic, load.partitions)) < records:
        if time.monotonic() > until_s or failure():
            raise BenchError(f"{load.title}: {found} of {records} records came: {failure() or 'it takes too long'}")
        await asyncio.sleep(_FIRST_POLL_S)
    return time.monotonic()


async def _seen(target: Side, topic: str, load: Load, look: Callable[[], Look]) -> _Seen[Look]:
    ends = await target.ends(topic, load.partitions)
    return _Seen(time.monotonic(), ends, look())


async def measure_ceiling(
    load: Load, number: int, bed: Bed, held: Contents, variant: Variant, length_s: float
) -> Ceiling:
    """Produce the load's batches into a fresh topic, as ``variant`` says."""
    await bed.clear({load.topic})
    topic = f"us.{load.topic}"
    await bed.target.create(topic, load.partitions, load.replication)
    with Loops(bed.source.bootstrap, bed.target.bootstrap, load, topic, variant) as loops:
        loops.go()
        window = Window(_CEILING_RAMP_S, length_s)
        endless = Contents(2**62, held.record_bytes, held.batch_bytes)
        look = partial(_cpu_s, bed.target)
        _, begin, end = await _steady(bed.target, topic, load, endless, window, look, loops.failure)
    records_per_s = (end.records - begin.records) / (end.at_s - begin.at_s)
    gigabytes = (end.records - begin.records) * held.record_bytes / 1e9
    cpu_s = (end.look - begin.look) / gigabytes
    return Ceiling(
        load=load.name,
        round=number,
        variant=variant.title,
        records_per_s=records_per_s,
        wire_mb_per_s=records_per_s * held.record_bytes / 1e6,
        target_cpu_s_per_gb=cpu_s,
    )


def _cpu_s(side: Side) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in side.pids]
    return sum(one.user + one.system for one in times)


def failure_of(replicator: Replicator) -> str | None:
    return None if replicator.is_running else f"the replicator ended by itself: {replicator.tail()}"


def check_batches(contender: Contender, load: Load, copied: Contents) -> None:
    """Raises BenchError if what is called tuned writes batches that are not."""
    least = contender.least_batch_bytes
    if "compression.type" in load.producer:
        least //= _COMPRESSED_TO
    if copied.batch_bytes < least:
        raise BenchError(
            f"{contender.title} on {load.title}: its batches are {copied.batch_bytes:.0f} B at the target, "
            f"so its tuning has no effect (more than {least} B expected); look at {contender.file.name}"
        )


async def measure_start(contender: Contender, load: Start, number: int, bed: Bed, folder: Path) -> Started:
    """Start a contender on a target without topics, with files and classes in the machine's memory, and stop it at its
    first record. Raises BenchError if none comes."""
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
