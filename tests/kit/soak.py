"""The soak run (``python -m tests.kit.soak``): everything at once, by chance, compared record by record at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from connect.core.errors import HeliographError
from connectors.formats.gap import GapKind, GapRecord
from connectors.formats.types import TopicPartition
from tests.kit.brokers import KafkaCluster
from tests.kit.long_run import begin, leave, parser_of, say
from tests.kit.map_judge import BELOW, UNKNOWN, judge_map
from tests.kit.processes import DeadlinePassed, Role
from tests.kit.soak_judge import Lost, Verdict, judge
from tests.kit.soak_plan import ALIAS, EVERYTHING, FILTERING, Act, Action, Fate, actions, feeds
from tests.kit.soak_stage import SoakStage
from tests.kit.stored import stored_gaps

_START_DEADLINE_S: Final = 600.0
#: What is waited for behind that has so long, or so many times what the slowest such wait of the run has taken: where
#: other work keeps the processors busy, Spark starts in minutes.
_LEAST_PATIENCE_S: Final = 300.0
_PATIENCE: Final = 5.0
#: What comes to the target before the next act, when that waits.
_COPIED_RECORDS: Final = 300
_PAUSE_S: Final = (0.0, 2.0)
_GROWN_MOST: Final = 5
#: The longest time between two commits of positions: the cadence of 10 s, and a commit that a broken broker holds up.
_BETWEEN_COMMITS_S: Final = 30


@dataclass(slots=True)
class SoakReport:
    """A whole run; ``verdicts`` by target partition, ``acts`` as they were done."""

    seed: int
    exactly_once: bool
    acts: list[str] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    map_records: int = 0
    gap_records: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        return sum(getattr(verdict, name) for verdict in self.verdicts.values())

    def markdown(self) -> str:
        mode = "exactly-once" if self.exactly_once else "plain"
        names = (
            "source_records",
            "target_records",
            "lost",
            "superseded",
            "missing",
            "doubled",
            "announced",
            "counted",
            "disorder",
            "strange",
        )
        counts = "".join(f"| {name.replace('_', ' ')} | {self.total(name)} |\n" for name in (*names, "wrongly_lost"))
        acts = "".join(f"{number}. {act}\n" for number, act in enumerate(self.acts, 1))
        faults = "".join(f"- {fault}\n" for fault in self.faults)
        return (
            f"# Soak run, seed {self.seed}, {mode}\n\n"
            f"{len(self.acts)} acts in {self.seconds:.0f} s, {len(self.verdicts)} target partitions, "
            f"{self.gap_records} gap records, {self.map_records} records looked up in the offset map.\n\n"
            f"| records | |\n| --- | --- |\n{counts}\n{acts}" + (f"\n## Faults\n\n{faults}" if faults else "")
        )


class Soak:
    def __init__(self, stage: SoakStage, report: SoakReport, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._report = report
        self._say = say
        self._chance = random.Random(f"{report.seed}/play")
        self._thaws: set[asyncio.Task[None]] = set()
        self._slowest_s = 0.0

    async def play(self, wanted: Sequence[Action], seconds: float) -> None:
        """Act for so long, and until all that is wanted was done; then let the mirror catch up, stop it, and judge."""
        began_s = time.monotonic()
        stage, report = self._stage, self._report
        stage.mirror.start()
        try:
            await self._copies(_START_DEADLINE_S)
            stage.feed_what_retention_takes()
            for number, action in enumerate(actions(report.seed, wanted)):
                if number >= len(wanted) and time.monotonic() - began_s >= seconds:
                    break
                await self._act(action)
            await asyncio.gather(*self._thaws)
            for feeder in stage.feeders.values():
                await feeder.stop()
            await stage.until_all_stored(self._patience_s)
        except (AssertionError, DeadlinePassed) as error:
            self._say(f"ended by: {error}")
            report.faults.append(str(error))
        await asyncio.gather(*self._thaws)
        await self._stop()
        try:
            await self._judge()
        except (AssertionError, HeliographError) as error:
            report.faults.append(f"not judged: {error}")
        report.seconds = round(time.monotonic() - began_s, 1)

    async def _act(self, action: Action) -> None:
        stage = self._stage
        self._say(f"{action}")
        if action.down:
            await asyncio.to_thread(stage.mirror.kill)
        note = ""
        match action.act:
            case Act.KILL:
                await self._kill(action)
            case Act.FREEZE:
                await self._freeze(action)
            case Act.RESTART:
                code = await asyncio.to_thread(stage.mirror.stop)
                assert code == 0, f"the mirror ended with exit code {code} after SIGTERM"
                stage.mirror.start()
            case Act.FREEZE_BROKER:
                self._freeze_broker(action)
            case Act.KILL_BROKER:
                cluster, node = self._broker(action)
                await asyncio.to_thread(cluster.kill, node)
                await asyncio.to_thread(cluster.start_node, node)
            case Act.GROW:
                if stage.feeders["grown"].partitions < _GROWN_MOST:
                    await stage.grow("grown")
            case Act.RECREATED:
                await stage.recreate("anew")
            case Act.CUT:
                note = await self._cut(action)
            case Act.LATE:
                (feed,) = (feed for feed in stage.feeds.values() if feed.fate is Fate.LATE)
                await stage.make(feed)
        self._report.acts.append(f"{action}" + (f": {note}" if note else ""))
        if action.down:
            stage.mirror.start()
        if not action.at_once:
            await self._copies(self._patience_s)
            await asyncio.sleep(self._chance.uniform(*_PAUSE_S))

    async def _copies(self, deadline_s: float) -> None:
        began_s = time.monotonic()
        await self._stage.copies(_COPIED_RECORDS, deadline_s)
        self._slowest_s = max(self._slowest_s, time.monotonic() - began_s)

    @property
    def _patience_s(self) -> float:
        return max(_LEAST_PATIENCE_S, _PATIENCE * self._slowest_s)

    async def _kill(self, action: Action) -> None:
        assert action.role is not None, "somebody is killed"
        stage = self._stage
        if action.role is Role.WORKER:
            await asyncio.to_thread(stage.mirror.kill)
            stage.mirror.start()
            return
        victim = await self._member(action.role)
        victim.process.kill()

    async def _freeze(self, action: Action) -> None:
        assert action.role is not None, "somebody is frozen"
        victim = await self._member(action.role)
        victim.process.suspend()
        self._later(action.lasting_s, lambda: _continue(victim))
        await asyncio.sleep(action.lasting_s)

    def _freeze_broker(self, action: Action) -> None:
        cluster, node = self._broker(action)
        cluster.freeze(node)
        self._later(action.lasting_s, lambda: cluster.thaw(node))

    def _broker(self, action: Action) -> tuple[KafkaCluster, int]:
        """Return the cluster of the action's side, and the index of one of its nodes."""
        cluster = self._stage.us if action.side == "us" else self._stage.eu
        return cluster, self._chance.randrange(len(cluster.nodes))

    async def _cut(self, action: Action) -> str:
        """Where the mirror runs, its slices are frozen meanwhile, or nothing would be left that is not copied."""
        stage = self._stage
        if action.down:
            return await stage.cut("cut", self._chance, unread=action.unread)
        frozen = await asyncio.to_thread(stage.victims, Role.PYTHON_WORKER)
        for slice_ in frozen:
            slice_.process.suspend()
        try:
            await asyncio.sleep(self._chance.uniform(*_PAUSE_S))
            return await stage.cut("cut", self._chance)
        finally:
            for slice_ in frozen:
                _continue(slice_)

    async def _member(self, role: Role) -> Any:
        patience_s = self._patience_s
        deadline_s = time.monotonic() + patience_s
        while not (found := await asyncio.to_thread(self._stage.victims, role)):
            if time.monotonic() > deadline_s:
                raise DeadlinePassed(f"waited {patience_s:g} s in vain for a {role.value}")
            await asyncio.sleep(0.1)
        return self._chance.choice(found)

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(after_s)
            finally:
                act()

        task = asyncio.create_task(wait(), name="thaw")
        self._thaws.add(task)
        task.add_done_callback(self._thaws.discard)

    async def _stop(self) -> None:
        stage, report = self._stage, self._report
        if not stage.mirror.is_running:
            report.faults.append(f"the mirror had ended by itself: {stage.mirror.log_lines()[-1:]}")
            return
        if code := await asyncio.to_thread(stage.mirror.stop):
            report.faults.append(f"the mirror ended with exit code {code} after SIGTERM")

    async def _judge(self) -> None:
        stage, report = self._stage, self._report
        await stage.source.at_end()
        await stage.target.at_end()
        gaps = [one for alias in (ALIAS, FILTERING) for one in await stored_gaps(stage.eu.bootstrap, alias)]
        report.gap_records = len(gaps)
        for topic, feeder in stage.feeders.items():
            for index in range(feeder.partitions):
                own = [one for one in gaps if (one.source_topic, one.source_partition) == (topic, index)]
                self._judge_partition(topic, index, own)
                # The judge of the map does not know which records of a filtered topic have no copy.
                if stage.feeds[topic].fate is not Fate.FILTERED:
                    await self._judge_map(TopicPartition(topic, index))

    def _judge_partition(self, topic: str, index: int, gaps: Sequence[GapRecord]) -> None:
        stage = self._stage
        lives = stage.lives[topic]
        lost = lost_ranges(gaps, [life.hex for life in lives])
        name = stage.feeds[topic].remote
        verdict = judge(
            stage.source.seen[topic, index],
            stage.target.seen.get((name, index), []),
            lost,
            compacted=stage.feeds[topic].fate.is_compacted,
            announced=self._announced(topic, index),
            counted=self._counted(topic, index),
        )
        self._report.verdicts[f"{name}-{index}"] = verdict
        if not verdict.is_exact:
            self._report.faults += [f"{name}-{index}: {fault}" for fault in verdict.faults]

    async def _judge_map(self, partition: TopicPartition) -> None:
        stage, report = self._stage, self._report
        verdict = await judge_map(
            stage.us, stage.eu, f"mm2-offset-map.{ALIAS}.internal", partition, read_committed=True
        )
        report.map_records += verdict.same + verdict.next_survivor + verdict.reversed
        # What could not be proven is in the log and not in the map.
        unknown = [fault for fault in verdict.faults if UNKNOWN in fault]
        faults = verdict.faults
        if self._is_restarted(partition.topic):  # what was copied of the topic before lies below its map
            unknown = [fault for fault in unknown if BELOW not in fault]
            faults = [fault for fault in faults if UNKNOWN not in fault or BELOW not in fault]
        if len(unknown) <= self._announced(*partition) + self._counted(*partition):
            faults = [fault for fault in faults if UNKNOWN not in fault]
        report.faults += [f"offset map of {partition}: {fault}" for fault in faults[:3]]

    def _announced(self, topic: str, index: int) -> int:
        """Return how many records may come twice, as the mirror's log announces it; none if its promise is exact."""
        if self._report.exactly_once or not self._stage.feeds[topic].fate.may_double:
            return 0
        said = self._stage.mirror.resumed()
        return sum(one.may_double for one in said if one.partition == f"{topic}-{index}")

    def _is_restarted(self, topic: str) -> bool:
        return len(self._stage.lives[topic]) > 1

    def _counted(self, topic: str, index: int) -> int:
        """Return how many records that had arrived gaps may name as lost: each begins at the stored position."""
        restarts = len(self._stage.lives[topic]) - 1
        if not restarts:
            return self._announced(topic, index)
        return int(restarts * self._stage.records_per_s_of_topic * _BETWEEN_COMMITS_S)


def lost_ranges(gaps: Sequence[GapRecord], lives: Sequence[str]) -> list[Lost]:
    """What the gap records of one partition, in order, say is missing; ``lives``: the hex ids of its topics."""
    found = []
    at = 0
    for record in gaps:
        gap = record.gap
        if gap.kind is GapKind.SOURCE_RECREATED:
            assert gap.new_id is not None, "it is known which topic is there now"
            found.append(Lost(at, gap.first, None))
            # Those that came and went meanwhile were never seen.
            found += [Lost(life, 0, None) for life in range(at + 1, lives.index(gap.new_id.hex))]
            at = lives.index(gap.new_id.hex)
        elif gap.kind is GapKind.SOURCE_GAP:
            found.append(Lost(at, gap.first, gap.last))
    return found


def _continue(member: Any) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        member.process.resume()


async def run(
    directory: Path,
    *,
    seed: int,
    seconds: float,
    exactly_once: bool,
    records_per_s: float,
    wanted: Sequence[Action] = EVERYTHING,
    target_nodes: int = 3,
    say: Callable[[str], None] = lambda line: None,
) -> SoakReport:
    report = SoakReport(seed, exactly_once)
    stage = SoakStage(
        directory,
        feeds(seed),
        seed=seed,
        records_per_s=records_per_s,
        exactly_once=exactly_once,
        target_nodes=target_nodes,
    )
    async with stage:
        await Soak(stage, report, say).play(wanted, seconds)
    return report


def main() -> int:
    parser = parser_of("python -m tests.kit.soak", __doc__, "of all that is left to chance")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things are broken, at least (default 10)")
    parser.add_argument("--exactly-once", action="store_true", help="records and positions in the same transactions")
    parser.add_argument("--rate", type=float, default=500, help="records a second, in all")
    parser.add_argument("--target-nodes", type=int, default=3, help="brokers of the target (default 3, two in sync)")
    parser.add_argument("--report", type=Path, default=Path("build/soak"), help="directory of the reports")
    options = parser.parse_args()
    seed = options.seed
    # What clients try again while brokers are away is no news.
    logging.basicConfig(level=logging.CRITICAL)
    directory = begin("soak", seed)
    report = asyncio.run(
        run(
            directory,
            seed=seed,
            seconds=options.minutes * 60,
            exactly_once=options.exactly_once,
            records_per_s=options.rate,
            target_nodes=options.target_nodes,
            say=lambda line: say(f"{time.strftime('%H:%M:%S')} {line}"),
        )
    )
    name = f"{seed}-exactly-once" if options.exactly_once else f"{seed}"
    return leave(report, options.report, name, report.faults, directory)


if __name__ == "__main__":
    sys.exit(main())
