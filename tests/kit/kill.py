"""The kill run (``python -m tests.kit.kill``): strike a copying mirror again and again and compare after every blow."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.long_run import begin, leave, parser_of, say
from tests.kit.mirror import HANDOVERS, with_rest
from tests.kit.rounds import FROZEN, FROZEN_ON_CLUSTER, KILLED, KILLED_ON_CLUSTER, Round, plan
from tests.kit.secured import SecuredStage
from tests.kit.spark_cluster import StandaloneSpark, bare_python
from tests.kit.stage import Stage
from tests.kit.strike import RoundResult, Strike

_START_DEADLINE_S: Final = 600.0
_ATTEMPTS: Final = 3
#: So many rounds must find a surplus at the target, in a run of full length.
SURPLUS_ROUNDS: Final = 5


@dataclass(slots=True)
class RunReport:
    """A whole run. ``faults`` are those of the run itself; the rounds have their own."""

    seed: int
    surplus_rounds_wanted: int
    rounds: list[RoundResult] = field(default_factory=list)
    comparison: str = ""
    lateness: str = ""
    exit_code: int | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def all_faults(self) -> list[str]:
        of_rounds = [
            f"round {played.number} ({played.what}): {fault}" for played in self.rounds for fault in played.faults
        ]
        return of_rounds + self.faults

    @property
    def surplus_rounds(self) -> int:
        return sum(played.found_surplus for played in self.rounds)

    def markdown(self) -> str:
        head = (
            f"# Kill run, seed {self.seed}\n\n"
            f"{len(self.rounds)} rounds, {self.surplus_rounds} of them found a surplus. "
            f"At the end: {self.comparison or 'not compared'}. The worker: {self.lateness}.\n\n"
            "| round | what | kept bytes | looked s | caught up s | surplus records | faults |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n"
        )
        rows = "".join(
            f"| {played.number} | {played.what} | {played.kept_bytes} | {_seconds(played.looked_s)} "
            f"| {_seconds(played.caught_up_s)} | {played.surplus_records} | {len(played.faults) or 'none'} |\n"
            for played in self.rounds
        )
        faults = "".join(f"- {fault}\n" for fault in self.all_faults)
        return head + rows + (f"\n## Faults\n\n{faults}" if faults else "")


def run(
    stage: Stage,
    rounds: Sequence[Round],
    *,
    seed: int,
    surplus_rounds: int,
    say: Callable[[str], None] = lambda line: None,
) -> RunReport:
    """Play the rounds, none after a faulty one; stop the mirror, and judge the offset map."""
    report = RunReport(seed, surplus_rounds)
    report.faults += stage.set_going(_START_DEADLINE_S)
    for planned in rounds:
        if report.all_faults:
            break
        say(f"round {planned.number}/{len(rounds)}: {planned}")
        report.rounds.append(play_round(stage, planned, seed, say))
    _finish(stage, report)
    if not report.all_faults:
        report.faults += [f"offset map of {fault}" for fault in stage.map_faults()]
    return report


def play_round(stage: Stage, planned: Round, seed: int, say: Callable[[str], None] = lambda line: None) -> RoundResult:
    """Play a round on a stage whose mirror runs; play it again if its blow hits nothing."""
    for attempt in range(1, _ATTEMPTS + 1):
        played = Strike(stage, planned, seed + attempt).play()
        say(f"  {'hit nobody' if played.missed else f'surplus {played.surplus_records} records'}; {played.comparison}")
        if not played.missed:
            return played
    played.faults.append(f"{_ATTEMPTS} blows in turn hit nobody")
    return played


def _finish(stage: Stage, report: RunReport) -> None:
    ending = stage.shut_down()
    report.lateness = str(stage.lateness)
    report.exit_code, report.comparison = ending.exit_code, ending.comparison.summary()
    report.faults += ending.faults
    report.faults += [fault for fault in ending.comparison.faults if not report.all_faults]
    if stage.exactly_once and not report.all_faults and not ending.comparison.total("aborted"):
        report.faults.append("no blow fell into an open transaction: nothing was aborted, so the run proved nothing")
    if not report.all_faults and report.surplus_rounds < report.surplus_rounds_wanted:
        report.faults.append(
            f"only {report.surplus_rounds} rounds found a surplus, {report.surplus_rounds_wanted} are needed as proof"
        )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _arguments() -> argparse.Namespace:
    parser = parser_of("python -m tests.kit.kill", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="rounds with a SIGKILL (default 20)")
    parser.add_argument("--stops", type=int, default=4, help="rounds with a SIGSTOP of a slice (default 4)")
    parser.add_argument("--rate", type=float, default=15_000, help="records a second written meanwhile")
    parser.add_argument("--target-nodes", type=int, default=3, help="brokers of the target (default 3, two in sync)")
    parser.add_argument("--secured", action="store_true", help="SCRAM over TLS at the source, mutual TLS at the target")
    parser.add_argument("--exactly-once", action="store_true", help="records and positions in the same transactions")
    parser.add_argument("--spark", choices=("local", "standalone"), default="local", help="where slices run")
    parser.add_argument("--report", type=Path, default=Path("build/kill"), help="directory of the reports")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    seed = options.seed
    directory = begin("kill", seed)
    on_cluster = options.spark == "standalone"
    victims = (KILLED_ON_CLUSTER, FROZEN_ON_CLUSTER) if on_cluster else (KILLED, FROZEN)
    rounds = plan(seed, options.kills, options.stops, *victims)
    stage_of = SecuredStage if options.secured else Stage
    with contextlib.ExitStack() as exits:
        spark = exits.enter_context(StandaloneSpark(bare_python(directory / "python"))) if on_cluster else None
        settings = {"seed": seed, "records_per_s": options.rate, "target_nodes": options.target_nodes, "spark": spark}
        settings |= {"exactly_once": options.exactly_once, "properties": {**HANDOVERS, **with_rest()}}
        stage = exits.enter_context(stage_of(directory, **settings))
        report = run(
            stage,
            rounds,
            seed=seed,
            # Nothing has to be found behind a position that is stored together with its records.
            surplus_rounds=0 if options.exactly_once else min(SURPLUS_ROUNDS, len(rounds) // 4),
            say=say,
        )
    return leave(report, options.report, f"{seed}", report.all_faults, directory)


if __name__ == "__main__":
    sys.exit(main())
