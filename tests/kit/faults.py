"""The fault run (``python -m tests.kit.faults``): break the paths to both clusters, and compare after every fault."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.fault_plan import BREAKING, Fault, Kind, Side, plan, wanted
from tests.kit.long_run import begin, leave, parser_of, say
from tests.kit.mirror import HANDOVERS
from tests.kit.pipe import Direction
from tests.kit.processes import DeadlinePassed, wait_until
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import FaultProxy, Where, everywhere
from tests.kit.requests import DESCRIBE_PRODUCERS, FETCH, PRODUCE
from tests.kit.stage import Stage

#: Time-outs are short, so that faults outlast them.
PROPERTIES: Final = {"us.consumer.request.timeout.ms": "2000", "eu.producer.request.timeout.ms": "2000", **HANDOVERS}
_START_DEADLINE_S: Final = 600.0
_LOAD_DEADLINE_S: Final = 600.0
_FAULT_DEADLINE_S: Final = 600.0
_CATCH_UP_DEADLINE_S: Final = 600.0
#: What is copied before a fault is made.
_LOAD_BYTES: Final = 150_000
#: In so many rounds of four at the target, somebody had to ask what had become of a batch.
_SETTLED_SHARE: Final = 0.25


@dataclass(slots=True)
class FaultResult:
    """One round; ``settled`` questions about batches without an answer, ``taken_over`` partitions given up."""

    number: int
    what: str
    kind: str
    side: str
    at_s: float
    in_flight_bytes: int = 0
    reconnected: int = 0
    settled: int = 0
    taken_over: int = 0
    caught_up_s: float | None = None
    comparison: str = ""
    faults: list[str] = field(default_factory=list)


def copies(state: ConnectionState) -> bool:
    return bool(state.requests.get(PRODUCE) or state.requests.get(FETCH))


class FaultRound:
    """Plays one fault on a stage (both paths proxied) whose mirror is copying under load."""

    def __init__(self, stage: Stage, fault: Fault, began_s: float) -> None:
        self._stage = stage
        self._fault = fault
        proxies = stage.source_proxies if fault.side is Side.SOURCE else stage.proxies
        self._proxy: FaultProxy = proxies[fault.number % len(proxies)]
        self._where: Where = copies if fault.copying else everywhere
        self._log_start = stage.mirror.log_end()
        self._result = FaultResult(
            fault.number, str(fault), fault.kind.name, fault.side.name, round(time.monotonic() - began_s, 1)
        )

    def play(self) -> FaultResult:
        """The whole round; what it waited for in vain and what the comparison found are its result's faults."""
        result = self._result
        accepted, asked = self._proxy.accepted(), self._stage.asked((DESCRIBE_PRODUCERS,))
        dropped_bytes = self._proxy.dropped_bytes()
        try:
            self._under_load()
            result.in_flight_bytes = self._make()
            self._under_load()
            if self._fault.kind in BREAKING:
                self._until(lambda: self._proxy.accepted() > accepted, "a client comes on another connection")
                result.in_flight_bytes = self._proxy.dropped_bytes() - dropped_bytes
        except DeadlinePassed as error:
            result.faults.append(str(error))
        self._compare()
        result.reconnected = self._proxy.accepted() - accepted
        result.settled = self._stage.asked((DESCRIBE_PRODUCERS,)) - asked
        self._read_log()
        return result

    def _under_load(self) -> None:
        loaded = self._stage.passed_bytes() + _LOAD_BYTES
        wait_until(lambda: self._stage.passed_bytes() >= loaded, _LOAD_DEADLINE_S, "the mirror copies under load")

    def _until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, _FAULT_DEADLINE_S, what)

    def _make(self) -> int:
        """Make the fault and end it; the bytes that it kept back for a while."""
        fault, proxy, where = self._fault, self._proxy, self._where
        match fault.kind:
            case Kind.CUT:
                self._trip(proxy.cut_after(fault.after_bytes, fault.direction, where))
            case Kind.HALF_CLOSE:
                self._trip(proxy.half_close_after(fault.after_bytes, fault.direction, where))
            case Kind.UNANSWERED:
                self._cut_unanswered()
            case Kind.HOLD:
                return self._hold()
            case Kind.STALL:
                return self._stall()
            case Kind.DELAY:
                proxy.delay(fault.direction, fault.delay_ms, jitter_ms=fault.delay_ms)
                return self._weather(lambda: proxy.delay(fault.direction, 0.0))
            case Kind.LIMIT:
                proxy.limit(fault.direction, fault.bytes_per_s)
                return self._weather(lambda: proxy.limit(fault.direction, None))
        return 0

    def _trip(self, tripped: threading.Event) -> None:
        self._until(tripped.is_set, f"{self._fault}")

    def _cut_unanswered(self) -> None:
        """What the proxy keeps of answers, the broker has done."""
        self._proxy.hold(Direction.ANSWERS, self._where)
        try:
            self._until(lambda: self._proxy.kept_bytes(Direction.ANSWERS), "answers are held")
            self._proxy.cut(self._where)
        finally:
            self._proxy.release()

    def _hold(self) -> int:
        fault, proxy = self._fault, self._proxy
        tripped = proxy.hold_after(fault.after_bytes, fault.direction, self._where)
        try:
            self._trip(tripped)
            if not fault.copying:
                proxy.hold(fault.direction, new_too=True)
            return self._last(lambda: proxy.kept_bytes(fault.direction))
        finally:
            proxy.release()

    def _stall(self) -> int:
        fault, proxy = self._fault, self._proxy
        tripped = proxy.stall_after(fault.after_bytes, fault.direction, self._where)
        try:
            self._trip(tripped)
            return self._last(lambda: proxy.unread_bytes(fault.direction, self._where))
        finally:
            proxy.resume(fault.direction)

    def _weather(self, end: Callable[[], None]) -> int:
        try:
            return self._last(lambda: self._proxy.kept_bytes(self._fault.direction))
        finally:
            end()

    def _last(self, look: Callable[[], int]) -> int:
        """Let the fault last as planned, and until it has met any bytes; the most that it was seen to keep back."""
        until_s = time.monotonic() + self._fault.lasting_s
        most = 0

        def is_over() -> bool:
            nonlocal most
            most = max(most, look())
            return bool(most) and time.monotonic() >= until_s

        self._until(is_over, f"{self._fault}, and meets bytes")
        return most

    def _compare(self) -> None:
        result = self._result
        ended_s = time.monotonic()
        report = self._stage.compare(_CATCH_UP_DEADLINE_S)
        if report.is_caught_up:
            result.caught_up_s = round(time.monotonic() - ended_s, 1)
        result.comparison = report.summary()
        result.faults += report.faults

    def _read_log(self) -> None:
        mirror, result = self._stage.mirror, self._result
        lines = mirror.log_lines(self._log_start)
        result.faults += [line for line in lines if "Traceback" in line or " ERROR " in line]
        resumed = mirror.resumed(self._log_start)
        result.taken_over = len(resumed)
        result.faults += [f"at-least-once fallback: {found.line}" for found in resumed if found.at_least_once]
        if not mirror.is_running:
            result.faults.append("the mirror ended")


@dataclass(slots=True)
class RunReport:
    """A whole run. ``faults`` are those of the run itself; the rounds have their own."""

    seed: int
    rounds: list[FaultResult] = field(default_factory=list)
    comparison: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def all_faults(self) -> list[str]:
        of_rounds = [
            f"round {played.number} ({played.what}): {fault}" for played in self.rounds for fault in played.faults
        ]
        return of_rounds + self.faults

    def markdown(self) -> str:
        head = (
            f"# Fault run, seed {self.seed}\n\n{len(self.rounds)} rounds, "
            f"{sum(played.reconnected for played in self.rounds)} new connections, "
            f"{sum(played.settled for played in self.rounds)} questions about batches without an answer, "
            f"{sum(played.taken_over for played in self.rounds)} partitions taken over. "
            f"At the end: {self.comparison or 'not compared'}.\n\n"
            "| round | at s | what | bytes on the way | reconnected | asked | taken over | caught up s | faults |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        )
        rows = "".join(
            f"| {played.number} | {played.at_s} | {played.what} | {played.in_flight_bytes} | {played.reconnected} "
            f"| {played.settled} | {played.taken_over} | {played.caught_up_s} | {len(played.faults) or 'none'} |\n"
            for played in self.rounds
        )
        faults = "".join(f"- {fault}\n" for fault in self.all_faults)
        return head + rows + (f"\n## Faults\n\n{faults}" if faults else "")


def run(
    stage: Stage, faults: Sequence[Fault], *, seed: int, seconds: float, say: Callable[[str], None] = lambda line: None
) -> RunReport:
    """Make ``faults`` for ``seconds``, all that bring every kind, and none after a faulty round; stop the mirror."""
    report = RunReport(seed)
    report.faults += stage.set_going(_START_DEADLINE_S)
    began_s = time.monotonic()
    needed = list(wanted(faults))
    for fault in faults:
        if report.all_faults or (fault.number > len(needed) and time.monotonic() - began_s > seconds):
            break
        say(f"{time.monotonic() - began_s:6.1f} s  {fault.number}/{len(faults)}: {fault}")
        played = FaultRound(stage, fault, began_s).play()
        say(
            f"          {played.in_flight_bytes} bytes on the way, {played.reconnected} reconnected, asked "
            f"{played.settled} times, {played.taken_over} taken over; {played.comparison}"
        )
        report.rounds.append(played)
    ending = stage.shut_down()
    report.comparison = ending.comparison.summary()
    report.faults += ending.faults
    if not report.all_faults:
        report.faults += ending.comparison.faults
        report.faults += unproven(report, needed)
    return report


def unproven(report: RunReport, needed: Sequence[tuple[Kind, Side]]) -> list[str]:
    """What a run must have done before it says anything."""
    made = {(played.kind, played.side) for played in report.rounds if played.in_flight_bytes}
    missing = [
        f"{kind.value} at the {side.value} met no bytes" for kind, side in needed if (kind.name, side.name) not in made
    ]
    at_target = [played for played in report.rounds if played.side == Side.TARGET.name]
    asked = sum(played.settled > 0 for played in at_target)
    if asked < _SETTLED_SHARE * len(at_target):
        missing.append(f"only {asked} of {len(at_target)} rounds at the target left a batch in doubt")
    return missing


def _arguments() -> argparse.Namespace:
    parser = parser_of("python -m tests.kit.faults", __doc__)
    parser.add_argument("--rounds", type=int, default=140, help="faults at most (default 140)")
    parser.add_argument("--seconds", type=float, default=240, help="no new fault after so long (default 240)")
    parser.add_argument("--rate", type=float, default=8_000, help="records a second written meanwhile")
    parser.add_argument("--target-nodes", type=int, default=3, help="brokers of the target (default 3, two in sync)")
    parser.add_argument("--report", type=Path, default=Path("build/faults"), help="directory of the reports")
    return parser.parse_args()


def main() -> int:
    options = _arguments()
    seed = options.seed
    directory = begin("fault", seed)
    with Stage(
        directory,
        seed=seed,
        records_per_s=options.rate,
        target_nodes=options.target_nodes,
        source_proxied=True,
        properties=PROPERTIES,
    ) as stage:
        report = run(stage, plan(seed, options.rounds), seed=seed, seconds=options.seconds, say=say)
    return leave(report, options.report, f"{seed}", report.all_faults, directory)


if __name__ == "__main__":
    sys.exit(main())
