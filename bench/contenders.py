"""Who runs: Java MirrorMaker 2 as it comes, the same tuned, and Heliograph, each by a committed file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import javaproperties

from bench.bed import BenchError
from bench.loads import AnyLoad, Load, Paced
from tests.kit.java_program import JavaMirrorMaker
from tests.kit.mirror import STOP_DEADLINE_S, Mirror

_HERE: Final = Path(__file__).parent
_TAIL_LINES: Final = 40
#: Whatever a mirror makes at the target has as many replicas as the load.
_AT_TARGET: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
)


class _Heliograph(Mirror):
    """``connect-mirror-maker <file>``, by default of the environment that the bench runs in."""

    def __init__(self, properties: Mapping[str, str], folder: Path, command: Sequence[str]) -> None:
        # A backslash is written twice in such a file.
        super().__init__({key: value.replace("\\", "\\\\") for key, value in properties.items()}, folder, command)

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log_lines()[-_TAIL_LINES:])

    def stop(self, within_s: float = STOP_DEADLINE_S) -> int:
        try:
            return super().stop(within_s)
        except AssertionError as error:
            raise BenchError(f"Heliograph: {error}") from error

    def __enter__(self) -> Self:
        self.start()
        return self


#: Runs inside its ``with``; leaving it leaves no process behind.
Replicator = JavaMirrorMaker | _Heliograph


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    title: str
    file: Path
    java: bool
    #: Batches at the target below this mean that the tuning has no effect; 0 checks nothing.
    least_batch_bytes: int = 0
    #: Whether its producer compresses as the load's did, as a copier of records loses the codec otherwise.
    keeps_codec: bool = False
    #: What runs it with its file, if not the environment that the bench runs in.
    command: Sequence[str] = ()

    def replicator(
        self, ways_in: tuple[Mapping[str, str], Mapping[str, str]], load: AnyLoad, folder: Path
    ) -> Replicator:
        """Not yet started. ``folder`` takes its log and its completed properties."""
        properties = self.properties(ways_in, load)
        if self.java:
            return JavaMirrorMaker(properties, folder / f"{self.name}.log")
        folder.mkdir(parents=True, exist_ok=True)
        return _Heliograph(properties, folder, self.command)

    def properties(self, ways_in: tuple[Mapping[str, str], Mapping[str, str]], load: AnyLoad) -> Mapping[str, str]:
        with self.file.open(encoding="utf-8") as lines:
            properties: dict[str, str] = javaproperties.load(lines)
        for alias, way_in in zip(("us", "eu"), ways_in, strict=True):
            properties |= {f"{alias}.{key}": value for key, value in way_in.items()}
        properties["us->eu.topics"] = load.topic
        properties |= dict.fromkeys(_AT_TARGET, str(load.replication))
        if self.keeps_codec and isinstance(load, Load) and "compression.type" in load.producer:
            properties["us->eu.producer.override.compression.type"] = load.producer["compression.type"]
        if isinstance(load, Paced) and not self.java:
            properties["copy.epoch.ms"] = "60000"
            del properties["tasks.max"]  # because Java has its defaults too: one task
        return properties


CONTENDERS: Final = (
    Contender("mm2-default", "MM2", _HERE / "mm2-default.properties", java=True),
    Contender(
        "mm2-tuned", "MM2 tuned", _HERE / "mm2-tuned.properties", java=True, least_batch_bytes=100_000, keeps_codec=True
    ),
    Contender("heliograph", "Heliograph", _HERE / "heliograph.properties", java=False),
)


def older(clone: Path) -> Contender:
    """Another version of Heliograph, from a clone in which ``make setup`` has run; its folder is its name."""
    # Older versions look for their modules in the folder first where they were started.
    command = ("/usr/bin/env", "PYTHONSAFEPATH=1", str(clone / ".venv" / "bin" / "connect-mirror-maker"))
    return Contender(clone.name, clone.name, _HERE / "heliograph.properties", java=False, command=command)
