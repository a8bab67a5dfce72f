"""A sampling profiler (py-spy, from outside) in the Python workers that copy, while a contender copies a load."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench import flame
from bench.bed import Bed, BenchError, Contents
from bench.contenders import Contender
from bench.loads import Load
from bench.measure import Window, failure_of, first_records
from tests.kit.processes import slices

_RATE_PER_S: Final = 100
#: For py-spy to look at the program before it begins, and to write behind its last sample.
_GRACE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Profile:
    """``svg`` and ``text`` are files; ``sentence`` is where people say what the graph shows; ``records_per_s`` says how
    fast it copied while it was looked at."""

    svg: Path
    text: Path
    sentence: Path
    records_per_s: float


async def profile(
    contender: Contender, load: Load, bed: Bed, held: Contents, window: Window, logs: Path, out: Path
) -> Profile:
    """Raises BenchError if the load does not last, or the profiler cannot look."""
    await bed.clear({load.topic})
    replicator = contender.replicator(bed.ways_in(load), load, logs)
    topic = f"us.{load.topic}"
    with ExitStack() as running:
        running.enter_context(replicator)
        await first_records(bed.target, topic, load, partial(failure_of, replicator))
        await asyncio.sleep(window.ramp_s)
        found = slices(replicator.pid, bed.target.ports)
        if not found:
            raise BenchError(f"{load.title}: no slice of {contender.title} is connected to the target")
        before, began_s = await bed.target.records(topic, load.partitions), time.monotonic()
        cpu_s = [_cpu_s(each.process) for each in found]
        stacks = await asyncio.gather(*(_sampled(each.pid, window.length_s, logs) for each in found))
        after, lasted_s = await bed.target.records(topic, load.partitions), time.monotonic() - began_s
        cores = [(_cpu_s(each.process) - then) / lasted_s for each, then in zip(found, cpu_s, strict=True)]
        await asyncio.to_thread(replicator.stop)
    if after >= held.records:
        raise BenchError(f"{load.title}: all {held.records} records were copied too soon; give it more (--scale)")
    rate = (after - before) / lasted_s
    of_slices = ", ".join(f"{each:.2f}" for each in cores)
    title = f"{contender.title}, {load.title}: {rate:,.0f} records/s, slices with {of_slices} cores"
    name = f"flame-{load.name}" if contender.name == "heliograph" else f"flame-{load.name}-{contender.name}"
    made = Profile(out / f"{name}.svg", out / f"{name}.txt", out / f"{name}.md", rate)
    _write(made, title, flame.merged(stacks))
    return made


def _write(made: Profile, title: str, stacks: flame.Stacks) -> None:
    working = flame.working(stacks)
    samples, waited = working.total(), sum(stacks.values()) - working.total()
    said = f"{samples} samples at work, {waited} that waited for a socket or a core are left out"
    made.svg.parent.mkdir(parents=True, exist_ok=True)
    made.svg.write_text(flame.svg(f"{title}; {said}", working))
    made.sentence.unlink(missing_ok=True)  # because it says what was left in the graph before
    made.text.write_text(flame.text(f"{title}\n{said}", working))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _sampled(pid: int, seconds: float, folder: Path) -> flame.Stacks:
    file = folder / f"{pid}.stacks"
    spy = Path(sys.executable).parent / "py-spy"
    command = [spy, "record", "--pid", str(pid), "--format", "raw", "--output", file]
    command += ["--rate", str(_RATE_PER_S), "--duration", str(max(1, round(seconds)))]
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(seconds + _GRACE_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        tail = said.decode(errors="replace").strip().splitlines()[-3:]
        raise BenchError(f"py-spy cannot look into process {pid} (it needs the right to trace it): {' '.join(tail)}")
    return flame.parse(file.read_text().splitlines())
