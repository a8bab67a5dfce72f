"""What is done to a group under load, and what came of it: kills, a freeze past the session, a rolling restart."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kit.group_stage import GroupStage, Recovery
from tests.kit.number_watch import Stamp

#: Who is not struck goes on: so long without a record is the machine's doing.
STEADY_S: Final = 3.0


@dataclass(frozen=True)
class Outcome:
    """One blow. ``steady_gap_s``: the longest time without a record of any task that was not to move."""

    what: str
    recovery: Recovery | None
    steady_gap_s: float
    faults: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        parts = [str(self.recovery) if self.recovery else "", f"others without a record for {self.steady_gap_s:.2f} s"]
        load = os.getloadavg()[0]
        return f"{self.what}: {'; '.join(p for p in (*parts, self.note, *self.faults) if p)} (load {load:.1f})"


def kill(stage: GroupStage, what: str, names: Sequence[str], promised_s: float) -> Outcome:
    """SIGKILL to some at once; how soon the others have it all; then they come back."""
    before = stage.owners(names[0])
    at_s = stage.kill(names)
    recovery = stage.recovery(at_s, names)
    steady = _steady(stage, before, at_s, names)
    faults = [] if recovery.whole_s <= promised_s else [f"promised are {promised_s:g} s"]
    stage.start(names)
    return Outcome(f"{what} killed ({', '.join(names)})", recovery, steady, (*faults, *_slow(steady)))


def freeze(stage: GroupStage, name: str, promised_s: float, lease_s: float) -> Outcome:
    """SIGSTOP until the others have it all and a while longer, SIGCONT; what it still made of what is theirs."""
    before = stage.owners(name)
    at_s = time.time()
    stage.workers[name].freeze()
    try:
        recovery = stage.recovery(at_s, [name])
    finally:
        stage.workers[name].thaw()
    thawed_s = time.time()
    steady = _steady(stage, before, at_s, [name])
    stage.settle()
    back_s = time.time() - thawed_s
    stage.watch.drain()
    strays = [stray for made in stage.watch.stamps(at_s).values() for stray in strays_of(made, name)]
    twice_s = max((stray.made_s - thawed_s for stray in strays), default=0.0)
    faults = [] if recovery.whole_s <= promised_s else [f"promised are {promised_s:g} s"]
    if twice_s > lease_s:
        faults.append(f"it went on for {twice_s:.1f} s after its thaw, its lease is {lease_s:g} s")
    note = f"back with its share {back_s:.1f} s after the thaw; {len(strays)} records of its own meanwhile"
    return Outcome(f"worker frozen ({name})", recovery, steady, (*faults, *_slow(steady)), note)


def roll(stage: GroupStage, what: str = "rolling restart", programs: Path | None = None) -> Outcome:
    """SIGTERM and start, one worker after another; from ``programs`` where given, of another version perhaps."""
    begun_s, steady, faults = time.time(), 0.0, []
    for name, worker in stage.workers.items():
        before = stage.owners(name)
        at_s = time.time()
        faults += stage.stop_worker(name)
        worker.programs = programs or worker.programs
        stage.start([name])
        after = stage.owners(name)
        stayed = {part: at for part, at in before.items() if after[part] == at and at != name}
        stage.watch.drain()
        steady = max(steady, _gap(stage, stayed, at_s))
        faults += _moved(stage, stayed, at_s)
    gaps = stage.watch.longest_gaps(begun_s, time.time())
    by_connector = dict.fromkeys(stage.connectors, 0.0)
    for (topic, _), gap_s in gaps.items():
        by_connector[topic] = max(by_connector[topic], gap_s)
    note = "longest without a record: " + ", ".join(f"{name} {gap_s:.1f} s" for name, gap_s in by_connector.items())
    return Outcome(what, None, steady, (*faults, *_slow(steady)), note)


def strays_of(stamps: Iterable[Stamp], worker: str) -> list[Stamp]:
    """What a worker made of a task amid the records of one other, whose task it was by then."""
    ordered = sorted(stamps, key=lambda stamp: stamp.made_s)
    runs = [(name, list(made)) for name, made in itertools.groupby(ordered, key=lambda stamp: stamp.worker)]
    return [
        stamp
        for (before, _), (name, made), (after, _) in zip(runs, runs[1:], runs[2:], strict=False)
        if name == worker and before == after
        for stamp in made
    ]


def _steady(stage: GroupStage, before: dict[str, str], at_s: float, struck: Collection[str]) -> float:
    stage.watch.drain()
    return _gap(stage, {part: at for part, at in before.items() if at not in struck}, at_s)


def _gap(stage: GroupStage, parts: Collection[str], at_s: float) -> float:
    """The longest time without a record of the tasks among some parts."""
    gaps = stage.watch.longest_gaps(at_s, time.time())
    return max((gap_s for (topic, index), gap_s in gaps.items() if f"{topic}-{index}" in parts), default=0.0)


def _moved(stage: GroupStage, stayed: dict[str, str], at_s: float) -> list[str]:
    """Tasks that another worker than their own wrote for after all."""
    return [
        f"task {topic}-{index} ran on {sorted(others)} for a while"
        for (topic, index), stamps in stage.watch.stamps(at_s).items()
        if (owner := stayed.get(f"{topic}-{index}")) and (others := {stamp.worker for stamp in stamps} - {owner})
    ]


def _slow(steady_s: float) -> list[str]:
    return [] if steady_s <= STEADY_S else [f"tasks that were not struck made nothing for {steady_s:.1f} s"]
