"""What else a verification promises: kills, a limit of its rate, of its memory, a flow that runs, retention, a gap."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import psutil

from connectors.verification.report import RangeReason, VerificationResult
from tests.kit.direct import Broker
from tests.kit.processes import Member, gone, tree, wait_until
from tests.kit.verify.scene import FULL, Scene

KILLS: Final = 5
#: Of all bytes, read by a run before it is killed.
_KILLED_SHARE: Final = (0.04, 0.15)
#: Of a limited run; a tenth more is measured at the ends.
_RATE_SHARE: Final = 3
_TOLERANCE: Final = 1.15
_LEFTOVER_DEADLINE_S: Final = 60.0
_LOOKS_AT_LIVE: Final = 3
_LIVE_MEGABYTES: Final = 1.0
_CUT_TOPICS: Final = ("plain", "dense")
_GAP_TOPIC: Final = "fast"
_POLL_S: Final = 0.1
#: Of one Python process, of which half is what it loads.
_MOST_MEMORY_BYTES: Final = 300_000_000


def found_in(result: VerificationResult) -> list[tuple[object, ...]]:
    """Return what a result says of its partitions, without when and how it was read."""
    return [
        (*replace(part, verified_ms=0, bytes=0, same_bytes=0).to_wire().values(), part.bytes)
        for part in result.partitions
    ]


def killed(scene: Scene, chance: random.Random) -> list[str]:
    """SIGKILL on the way: first after a stored range, then by chance; the last report is as if undisturbed."""
    undisturbed = scene.verify(FULL)
    size = sum(part.bytes for part in undisturbed.partitions)
    # Slow enough that each killed run leaves some for the next.
    slow = ["--rate", str(max(size // 20, 1))]
    began, faults = [FULL], []
    for _ in range(KILLS):
        with subprocess.Popen(
            scene.command(*slow, *began), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            least = int(size * chance.uniform(*_KILLED_SHARE))
            # By then --full has replaced what the undisturbed run stored.
            if not _is_on_its_way(run, least, scene.has_stored if began else lambda: True):
                faults.append("a run ended before it was killed")
            members = tree(run.pid)
            run.kill()
        wait_until(partial(gone, members), _LEFTOVER_DEADLINE_S, "no process of a killed run is left")
        began = []
    last = scene.verify()
    if last.read_bytes >= size:
        faults.append(f"the last run read all {last.read_bytes} bytes again")
    if found_in(last) != found_in(undisturbed):
        pairs = zip(found_in(undisturbed), found_in(last), strict=True)
        faults += [f"after kills {after}, undisturbed {before}" for before, after in pairs if after != before]
    return faults


def _is_on_its_way(run: subprocess.Popen[str], size: int, has_stored: Callable[[], bool]) -> bool:
    """Follow a run's progress until it has read so many bytes and stored a range; False if it ended before."""
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith('{"progress"'):
            progress = json.loads(line)["progress"]
            if progress["bytes"] >= size and has_stored():
                return True
    return False


def limited(scene: Scene) -> list[str]:
    """A run with a limit reads no faster, and one reads all the same."""
    free = scene.verify(FULL)
    limit = max(int(free.read_bytes / max(free.read_s, 1.0) / _RATE_SHARE), 1)
    slow = scene.verify(FULL, "--rate", str(limit))
    measured = slow.read_bytes / max(slow.read_s, 0.001)
    return [] if measured <= limit * _TOLERANCE else [f"{measured:.0f} bytes/s with a limit of {limit}"]


def bounded(scene: Scene) -> list[str]:
    """A task with little memory to hold takes little, and finds the same."""
    result, most, _ = run_watched(scene, FULL)
    print(f"{most / 1e6:.0f} MB at most in one process", file=sys.stderr)
    faults = [] if result.is_equal else [f"differences: {result.partitions}"]
    return faults if most <= _MOST_MEMORY_BYTES else [*faults, f"a process took {most} bytes"]


def run_watched(
    scene: Scene, *options: str, members: Callable[[int], Sequence[Member]] = tree
) -> tuple[VerificationResult, int, list[float]]:
    """A run's result, the most memory of one of its processes (``members``), and CPU seconds of each."""
    most, cpu_s = 0, dict[int, float]()
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(scene.command(*options), stdout=printed, stderr=subprocess.DEVNULL) as run,
    ):
        while run.poll() is None:
            for member in members(run.pid):
                with contextlib.suppress(psutil.Error):
                    if "java" not in member.process.name():
                        most = max(most, member.process.memory_info().rss)
                        cpu_s[member.pid] = sum(member.process.cpu_times()[:2])
            time.sleep(_POLL_S)
        printed.seek(0)
        return VerificationResult.from_json(json.loads(printed.read())), most, sorted(cpu_s.values(), reverse=True)


def followed(scene: Scene) -> list[str]:
    """Compare while a mirror copies what a producer writes: what is not copied yet is no difference."""
    before, written = _compared(scene.verify()), dict(scene.written.counts)
    faults = []
    with scene.mirroring():
        for _ in range(_LOOKS_AT_LIVE):
            scene.fill(_LIVE_MEGABYTES)
            result = scene.verify()
            if not result.is_equal:
                faults.append(f"a difference while the mirror copied: {result.partitions}")
        scene.await_copied()
    after = _compared(scene.verify())
    for (topic, at), count in scene.written.counts.items():
        compared, new = after[topic, at] - before[topic, at], count - written[topic, at]
        if compared != new:
            faults.append(f"{topic}-{at}: {compared} new records compared, {new} written")
    return faults


def _compared(result: VerificationResult) -> dict[tuple[str, int], int]:
    return {(part.topic, part.partition): part.records for part in result.partitions}


def cut(scene: Scene) -> list[str]:
    """Delete what the source began with: explained, and no difference."""
    for topic in _CUT_TOPICS:
        Broker(scene.us, 0).delete_records(topic, scene.written.counts[topic, 0] // 3)
    result = scene.verify(FULL)
    return _explained(result, RangeReason.RETENTION_SOURCE, lambda topic, at: topic in _CUT_TOPICS and at == 0)


def skipped(scene: Scene) -> list[str]:
    """Delete what the mirror has not copied, and let it skip the gap."""
    before = scene.written.counts[_GAP_TOPIC, 0]
    scene.fill(_LIVE_MEGABYTES)
    start = (before + scene.written.counts[_GAP_TOPIC, 0]) // 2
    Broker(scene.us, 0).delete_records(_GAP_TOPIC, start)
    scene.written.add(_GAP_TOPIC, 0, before - start)
    with scene.mirroring(on_source_gap="skip"):
        scene.await_copied()
    result = scene.verify(FULL)
    return _explained(result, RangeReason.GAP, lambda topic, at: topic == _GAP_TOPIC and at == 0)


def _explained(result: VerificationResult, reason: RangeReason, of: Callable[[str, int], bool]) -> list[str]:
    faults = [] if result.is_equal else [f"differences where {reason}: {result.partitions}"]
    for part in result.partitions:
        if of(part.topic, part.partition) and not any(one.reason is reason for one in part.explained):
            faults.append(f"{part.topic}-{part.partition}: nothing explained as {reason}: {part.explained}")
    return faults
