"""The group run (``python -m tests.kit.group_run``): a worker group on real Kafka, struck time and again under load."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.kit import group_faults as blows
from tests.kit import rest_load
from tests.kit.brokers import KafkaCluster
from tests.kit.group_stage import SHORT_SESSION, GroupStage
from tests.kit.lateness import Lateness
from tests.kit.long_run import begin, end, parser_of, say
from tests.kit.mirror_group import MirrorGroup
from tests.kit.workers import PROGRAMS

#: Seconds until everything runs again: with a session of six seconds, and with default settings.
PROMISED_S: Final = {"short sessions": 10.0, "default sessions": 15.0}
_LEASE_S: Final = 5.0
_BLOWS: Final = ("leader", "owner", "both", "freeze", "roll")
_PARTS: Final = ("group", "mirror", "roll", "rest")
_PAUSE_S: Final = (0.2, 3.0)


def plan(seed: int, rounds: int) -> list[str]:
    """So many blows, each kind as often as any other, in an order of chance."""
    chance = random.Random(seed)
    planned: list[str] = []
    while len(planned) < rounds:
        planned += chance.sample(_BLOWS, len(_BLOWS))
    return planned[:rounds]


def play_group(
    bootstrap: str, name: str, directory: Path, kind: str, seed: int, rounds: int, late: Lateness
) -> Iterator[str]:
    """Play a plan and yield its faults; ``late`` gets how late the workers were."""
    chance = random.Random(f"{seed}/{kind}")
    settings = SHORT_SESSION if kind == "short sessions" else {}
    with GroupStage(bootstrap, name, directory, settings=settings) as stage:
        stage.create()
        for number, what in enumerate(plan(seed, rounds), 1):
            time.sleep(chance.uniform(*_PAUSE_S))
            outcome = _strike(stage, what, chance, PROMISED_S[kind])
            say(f"{kind}, round {number}/{rounds}: {outcome}")
            yield from (f"{kind}, round {number}, {outcome.what}: {fault}" for fault in outcome.faults)
        yield from (f"{kind}: {fault}" for fault in stage.stop())
        late.add(stage.lateness)
        records, repeated = stage.watch.counts()
        say(f"{kind}: {stage.lateness}")
        say(f"{kind}: {records} records, {repeated} of them for the second time (at least once), none missing")


def _strike(stage: GroupStage, what: str, chance: random.Random, promised_s: float) -> blows.Outcome:
    leader = stage.leader()
    other = chance.choice([name for name in stage.workers if name != leader])
    match what:
        case "leader":
            return blows.kill(stage, what, [leader], promised_s)
        case "owner":
            return blows.kill(stage, what, [other], promised_s)
        case "both":
            return blows.kill(stage, "leader and owner", [leader, other], promised_s)
        case "freeze":
            return blows.freeze(stage, chance.choice([leader, other]), promised_s, _LEASE_S)
    return blows.roll(stage)


def play_mirror(
    us: KafkaCluster, eu: KafkaCluster, directory: Path, seed: int, rounds: int, late: Lateness
) -> Iterator[str]:
    chance = random.Random(f"{seed}/mirror")
    with MirrorGroup(us, eu, directory, name="grouped", records_per_s=8_000) as group:
        group.set_going()
        for number in range(1, rounds + 1):
            time.sleep(chance.uniform(*_PAUSE_S))
            victim = chance.choice(sorted(group.workers))
            blow = group.kill(victim)
            say(f"mirror, round {number}/{rounds}: {blow}")
            yield from (f"mirror, round {number}: {fault}" for fault in blow.faults)
            group.bring_back(victim)
        yield from (f"mirror: {fault}" for fault in group.stop())
        say(f"mirror: {group.lateness}")
        late.add(group.lateness)


def play_roll(us: KafkaCluster, eu: KafkaCluster, directory: Path, older: Path | None, late: Lateness) -> Iterator[str]:
    old = PROGRAMS if older is None else older / ".venv" / "bin"
    turns = [("restarted", PROGRAMS, "ab")]
    if older is not None:
        turns = [("restarted, older", old, "ab"), ("upgraded", PROGRAMS, "ab"), *turns, ("downgraded", old, "ba")]
    with MirrorGroup(us, eu, directory, name="rolled", records_per_s=2_000, programs=old) as group:
        group.set_going()
        for what, programs, order in turns:
            for name in order:
                turn = group.turn(name, what, programs)
                say(f"mirror, {turn}")
                yield from (f"mirror, {what} ({name}): {fault}" for fault in turn.faults)
        yield from (f"mirror: {fault}" for fault in group.stop())
        say(f"mirror: {group.lateness}")
        late.add(group.lateness)


def play_versions(bootstrap: str, directory: Path, older: Path, late: Lateness) -> Iterator[str]:
    old = older / ".venv" / "bin"
    with GroupStage(bootstrap, "counting", directory, settings={}, programs=old) as stage:
        stage.create()
        for what, programs in (("upgraded", PROGRAMS), ("downgraded", old), ("upgraded again", PROGRAMS)):
            outcome = blows.roll(stage, what, programs)
            say(f"counting, {outcome}")
            yield from (f"counting, {what}: {fault}" for fault in outcome.faults)
        yield from (f"counting: {fault}" for fault in stage.stop())
        late.add(stage.lateness)


def play_rest(directory: Path) -> Iterator[str]:
    answers = rest_load.measure(directory)
    say(str(answers))
    if answers.p99_ms > rest_load.PROMISED_MS:
        yield f"REST: p99 {answers.p99_ms:.0f} ms, promised are {rest_load.PROMISED_MS:.0f} ms"
    if answers.refused:
        yield f"REST: {answers.refused} of {answers.requests} requests were refused"


def _play(options: argparse.Namespace, seed: int, directory: Path, late: Lateness) -> Iterator[str]:
    if "group" in options.parts:
        with KafkaCluster.start("us") as us:
            for number, kind in enumerate(PROMISED_S):
                yield from play_group(us.bootstrap, f"counting-{number}", directory, kind, seed, options.rounds, late)
    if "mirror" in options.parts:
        with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
            yield from play_mirror(us, eu, directory, seed, options.mirror_rounds, late)
    if "roll" in options.parts:
        with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
            if options.older is not None:
                yield from play_versions(us.bootstrap, directory, options.older, late)
            yield from play_roll(us, eu, directory, options.older, late)
    if "rest" in options.parts:
        yield from play_rest(directory)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("python -m tests.kit.group_run", __doc__)
    parser.add_argument("--rounds", type=int, default=10, help="blows for each kind of session (default 10)")
    parser.add_argument("--mirror-rounds", type=int, default=6, help="kills of a mirror's owner (default 6)")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="what to play (default all)")
    parser.add_argument(
        "--older", type=Path, default=None, help="a clone of an older version, where make setup has run"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _arguments(arguments)
    # What its client tries again is no news.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    directory = begin("group", options.seed)
    late = Lateness()
    faults = list(_play(options, options.seed, directory, late))
    if late.beats_s or late.unanswered:
        say(f"all workers: {late}")
    return end(faults, directory)


if __name__ == "__main__":
    sys.exit(main())
