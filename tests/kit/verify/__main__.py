"""The verify run (``python -m tests.kit.verify``): damage planted in a mirror's copy, and whether it is found."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.long_run import begin, leave
from tests.kit.verify import scenarios
from tests.kit.verify.damage import Kind
from tests.kit.verify.judge import judge
from tests.kit.verify.scene import FULL, SPARKS, Scene, verifying_on

SCENARIOS: Final[Mapping[str, Callable[[Scene, random.Random], list[str]]]] = {
    "killed": scenarios.killed,
    "limited": lambda scene, _: scenarios.limited(scene),
    "bounded": lambda scene, _: scenarios.bounded(scene),
    "followed": lambda scene, _: scenarios.followed(scene),
    "cut": lambda scene, _: scenarios.cut(scene),
    "skipped": lambda scene, _: scenarios.skipped(scene),
}


@dataclass
class Round:
    """One round; ``read_bytes`` are of the source."""

    seed: int
    planted: list[str]
    faults: list[str]
    took_s: float
    read_bytes: int
    read_s: float


@dataclass
class Report:
    seed: int
    megabytes: float
    merged: bool
    records: int = 0
    rounds: list[Round] = field(default_factory=list)
    scenarios: dict[str, list[str]] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        found = [fault for one in self.rounds for fault in one.faults]
        return [*found, *(f"{part}: {fault}" for part, some in self.scenarios.items() for fault in some)]

    def markdown(self) -> str:
        planted = sum(len(one.planted) for one in self.rounds)
        lines = [
            f"# heliograph verify, seed {self.seed}",
            "",
            f"{self.records} records, {self.megabytes:g} MB of values{', merged' if self.merged else ''}",
            "",
            f"{len(self.rounds)} rounds, {planted} damages, {len(self.faults)} faults",
            "",
            "| seed | planted | faults | s | MB read | s reading |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {one.seed} | {len(one.planted)} | {len(one.faults)} | {one.took_s:.1f} | {one.read_bytes / 1e6:.1f} "
            f"| {one.read_s:.1f} |"
            for one in self.rounds
        ]
        lines += ["", *(f"* {part}: {some or 'as promised'}" for part, some in self.scenarios.items())]
        return "\n".join([*lines, "", *(f"* {fault}" for fault in self.faults)])


def play(scene: Scene, report: Report, rounds: int, parts: Sequence[str]) -> None:
    """Copy, play the rounds, of which the first has no damage, and then the scenarios."""
    scene.copy()
    scene.stop_brokers()
    scene.keep()
    report.records = sum(len(pair.offsets) for pair in scene.pairs)
    chance = random.Random(report.seed)
    for number in range(rounds):
        _play_round(scene, report, chance.randrange(2**32), list(Kind) if number else [])
    scene.plant(0, [], cleaned=False)
    scene.start_brokers()
    for part in parts:
        report.scenarios[part] = SCENARIOS[part](scene, chance)
        print(f"{part}: {report.scenarios[part] or 'as promised'}", file=sys.stderr, flush=True)


def _play_round(scene: Scene, report: Report, seed: int, kinds: Sequence[Kind]) -> None:
    planted = scene.plant(seed, kinds)
    scene.start_brokers()
    began = time.monotonic()
    result = scene.verify(FULL)
    took_s = time.monotonic() - began
    faults = judge(planted, result)
    report.rounds.append(Round(seed, [str(one) for one in planted], faults, took_s, result.read_bytes, result.read_s))
    print(f"round {len(report.rounds)}: {asdict(report.rounds[-1])}", file=sys.stderr, flush=True)
    scene.stop_brokers()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.verify", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=8.0, help="of values over all topics (8)")
    parser.add_argument(
        "--parts", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS), help="what else to play"
    )
    parser.add_argument("--merged", action="store_true", help="let the mirror merge small batches")
    parser.add_argument("--spark", choices=SPARKS, default=SPARKS[0], help="where it compares")
    parser.add_argument("--folder", type=Path, default=Path("build/verify"), help="of the report")
    options = parser.parse_args(arguments)
    report = Report(options.seed, options.megabytes, options.merged)
    directory = begin("verify", options.seed)
    with (
        Scene(directory, seed=options.seed, megabytes=options.megabytes, merged=options.merged) as scene,
        verifying_on(options.spark, directory, scene),
    ):
        play(scene, report, options.rounds, options.parts)
    return leave(report, options.folder, f"verify-{options.seed}", report.faults, directory)


if __name__ == "__main__":
    sys.exit(main())
