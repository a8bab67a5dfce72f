"""One round of a kill run: load, hold or freeze the path, strike, let the successor look, let go, compare."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psutil

from tests.kit.pipe import Direction
from tests.kit.processes import DeadlinePassed, Member, Role, gone, wait_until
from tests.kit.requests import API_VERSIONS, DESCRIBE_PRODUCERS, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA
from tests.kit.resumed import Resumed
from tests.kit.rounds import KILLED, Moment, Path, Round
from tests.kit.spark_cluster import StandaloneSpark
from tests.kit.stage import Stage

#: On a machine with other work Spark starts in minutes.
_LOAD_DEADLINE_S: Final = 600.0
_KEEP_DEADLINE_S: Final = 60.0
_LOOK_DEADLINE_S: Final = 600.0
_GONE_DEADLINE_S: Final = 90.0
_CATCH_UP_DEADLINE_S: Final = 600.0
#: Where the tripwire of a hold lies: mostly inside a request or an answer, sometimes between two.
_HOLD_WITHIN_REQUEST_BYTES: Final = 200_000
_HOLD_WITHIN_ANSWER_BYTES: Final = 500
#: Well below the lease of a group's members, which would stop all work.
_FROZEN_LOOK_S: Final = 1.0
#: What a frozen broker must have got before the blow, to find in its sockets when it thaws.
_FROZEN_BYTES: Final = 1_000
#: A worker's word for the end of its lease.
_LEFT: Final = "No longer a member of the group"
#: What a successor asks first, if its worker lives on.
_LOOKS: Final = (METADATA, DESCRIBE_PRODUCERS, INIT_PRODUCER_ID, LIST_OFFSETS)
#: And if it is a new worker: a new connection's first question.
_FIRST_LOOKS: Final = (*_LOOKS, API_VERSIONS)


@dataclass(slots=True)
class RoundResult:
    """A round; seconds from the blow; ``missed``: it hit a slice that had just ended, and the copy was exact."""

    number: int
    what: str
    victim_pids: list[int] = field(default_factory=list)
    kept_bytes: int = 0
    looked_s: float | None = None
    resumed_s: float | None = None
    caught_up_s: float | None = None
    surplus_records: int = 0
    resumed: list[Resumed] = field(default_factory=list)
    comparison: str = ""
    missed: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def found_surplus(self) -> bool:
        return self.surplus_records > 0


class Strike:
    """Plays one round on a stage whose mirror is running and whose writer is writing."""

    def __init__(self, stage: Stage, planned: Round, seed: int) -> None:
        self._stage = stage
        self._round = planned
        self._chance = random.Random(f"{seed}/{planned.number}")
        self._result = RoundResult(planned.number, str(planned))
        self._log_start = stage.mirror.log_end()
        self._struck_at: float | None = None
        self._asked_before = 0
        self._copied_before: set[int] = set()

    def play(self) -> RoundResult:
        """The whole round; what it waited for in vain and what the comparison found are its result's faults."""
        result = self._result
        waited_in_vain = []
        with contextlib.ExitStack() as undo:
            try:
                self._play(undo)
            except DeadlinePassed as error:
                waited_in_vain.append(str(error))
        self._compare()
        result.resumed = self._stage.mirror.resumed(self._log_start)
        result.surplus_records = sum(found.surplus_records for found in result.resumed)
        result.faults += [f"at-least-once fallback: {found.line}" for found in result.resumed if found.at_least_once]
        result.missed = not result.resumed and not result.faults
        if not result.missed:
            result.faults += waited_in_vain
        return result

    def _play(self, undo: contextlib.ExitStack) -> None:
        stage, planned = self._stage, self._round
        loaded = stage.passed_bytes() + planned.load_bytes
        wait_until(partial(self._copies_again, loaded), _LOAD_DEADLINE_S, "the mirror copies under load")
        copying = wait_until(stage.slices, _LOAD_DEADLINE_S, "a slice writes to the target")
        victims = self._victims(copying)
        stage.look_how_late()
        let_go = self._prepare_path(copying if self._loses_all else _below(copying, victims), undo)
        self._copied_before = {member.pid for member in copying}
        doomed = self._strike(victims, undo)
        self._let_look()
        let_go()
        self._await(self._has_resumed, "a successor has resumed")
        self._result.resumed_s = self._since_blow()
        if planned.stop:
            for stopped in doomed:
                _continue(stopped)
            wait_until(
                lambda: not any(stage.producing(stopped) for stopped in doomed),
                _GONE_DEADLINE_S,
                "the slice that was stopped and continued has let go of the target",
            )
        else:
            wait_until(lambda: gone(doomed), _GONE_DEADLINE_S, "the killed and their children are gone")

    def _victims(self, copying: list[Member]) -> list[Member]:
        victim = self._round.victim
        if victim is Role.PYTHON_WORKER:
            return [self._chance.choice(copying)]

        def present() -> list[Member]:
            found = [member for member in self._stage.members() if member.role is victim]
            # Of a cluster's many one that has to do with the copy.
            return found if self._loses_all else [member for member in found if _below(copying, [member])][:1]

        return wait_until(present, _LOAD_DEADLINE_S, f"there is a {victim.value}")

    @property
    def _loses_all(self) -> bool:
        return self._round.victim in KILLED and self._round.victim is not Role.PYTHON_WORKER

    def _prepare_path(self, writers: list[Member], undo: contextlib.ExitStack) -> Callable[[], None]:
        """Hold the writers' bytes or freeze the broker; what is returned lets go, once, now or on the way out."""
        if self._round.path is Path.HELD:
            return self._hold(Direction.REQUESTS, _HOLD_WITHIN_REQUEST_BYTES, writers, undo)
        if self._round.path is Path.UNANSWERED:
            return self._hold(Direction.ANSWERS, _HOLD_WITHIN_ANSWER_BYTES, writers, undo)
        if self._round.path is Path.FROZEN:
            return self._freeze(undo)
        return lambda: None

    def _hold(
        self, direction: Direction, within_bytes: int, writers: list[Member], undo: contextlib.ExitStack
    ) -> Callable[[], None]:
        stage = self._stage
        ports = {state.client_port for writer in writers for state in stage.producing(writer)}
        wires = [
            proxy.hold_after(self._chance.randint(1, within_bytes), direction, lambda state: state.client_port in ports)
            for proxy in stage.proxies
        ]
        release = _once(stage.release)
        undo.callback(release)
        wait_until(lambda: any(wire.is_set() for wire in wires), _LOAD_DEADLINE_S, "the path is held")
        wait_until(lambda: stage.kept_bytes(direction), _KEEP_DEADLINE_S, "the proxy keeps bytes")
        return release

    def _freeze(self, undo: contextlib.ExitStack) -> Callable[[], None]:
        stage = self._stage
        node = self._chance.randrange(len(stage.proxies))
        end_s = time.monotonic() + _KEEP_DEADLINE_S
        while True:
            # Frozen while a transaction was ended, no one writes until it is; and a broker may lead nothing just now.
            stage.eu.freeze(node)
            thaw = _once(partial(stage.eu.thaw, node))
            undo.callback(thaw)
            passed = stage.passed_bytes(node)
            enough = partial(self._has_passed, node, passed + _FROZEN_BYTES)
            try:
                wait_until(enough, _FROZEN_LOOK_S, "the frozen broker has bytes")
            except DeadlinePassed:
                if time.monotonic() > end_s:
                    raise
                thaw()
                loaded = stage.passed_bytes() + _FROZEN_BYTES
                wait_until(partial(self._copies_again, loaded), _LOAD_DEADLINE_S, "the mirror copies again")
                node = (node + 1) % len(stage.proxies)
            else:
                return thaw

    def _copies_again(self, size: int) -> bool:
        return self._stage.passed_bytes() >= size

    def _has_passed(self, node: int, size: int) -> bool:
        return self._stage.passed_bytes(node) > size

    def _strike(self, victims: list[Member], undo: contextlib.ExitStack) -> list[Member]:
        """SIGKILL or SIGSTOP; who will be gone for it: the victims and all below them."""
        stage, result = self._stage, self._result
        pids = {victim.pid for victim in victims}
        doomed = _below(stage.members(), victims)
        result.victim_pids = sorted(pids)
        result.kept_bytes = sum(stage.kept_bytes(direction) for direction in Direction)
        self._asked_before = self._asked()
        self._struck_at = time.monotonic()
        struck = 0
        for victim in doomed if self._round.stop else victims:
            # One may have ended by itself, as a slice does whose epoch is over.
            with contextlib.suppress(psutil.NoSuchProcess):
                if self._round.stop:
                    victim.process.suspend()
                    undo.callback(_continue, victim)
                else:
                    victim.process.kill()
                struck += 1
        if not struck:
            raise DeadlinePassed(f"{sorted(pids)} had ended before the blow")
        if self._round.victim is Role.WORKER:
            stage.mirror.reap()
            stage.mirror.start()
        if self._round.victim is Role.CLUSTER_WORKER:
            assert isinstance(stage.spark, StandaloneSpark), "only such a cluster has workers"
            for victim in victims:
                stage.spark.replace_worker(victim.pid)
        return doomed

    def _let_look(self) -> None:
        if self._round.path is Path.PLAIN:
            return
        conditions: dict[Moment, Callable[[], object]] = {
            Moment.ASKED: lambda: self._asked() > self._asked_before or self._has_left_group(),
            Moment.RESUMED: self._has_resumed,
            Moment.COPYING: lambda: self._has_resumed() and self._successor_writes(),
        }
        self._await(conditions[self._round.release], self._round.release.value)
        self._result.looked_s = self._since_blow()

    def _await(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, _LOOK_DEADLINE_S, what)

    def _has_left_group(self) -> bool:
        """A cluster may take long to find a successor for a broker that was frozen past the worker's lease."""
        lines = self._stage.mirror.log_lines(self._log_start)
        return self._round.path is Path.FROZEN and any(_LEFT in line for line in lines)

    def _asked(self) -> int:
        return self._stage.asked(_FIRST_LOOKS if self._round.victim is Role.WORKER else _LOOKS)

    def _has_resumed(self) -> bool:
        """All partitions where all were lost, else those of the struck slice, whose lines come together."""
        found = {line.partition for line in self._stage.mirror.resumed(self._log_start)}
        return len(found) >= (self._stage.partitions if self._loses_all else 1)

    def _successor_writes(self) -> bool:
        return any(member.pid not in self._copied_before for member in self._stage.slices())

    def _compare(self) -> None:
        stage, result = self._stage, self._result
        report = stage.compare(_CATCH_UP_DEADLINE_S)
        if report.is_caught_up:
            result.caught_up_s = self._since_blow()
        result.comparison = report.summary()
        result.faults += report.faults

    def _since_blow(self) -> float | None:
        return None if self._struck_at is None else round(time.monotonic() - self._struck_at, 3)


def _below(members: list[Member], above: list[Member]) -> list[Member]:
    """Those of ``members`` that are one of ``above`` or descend from one."""
    pids = {member.pid for member in above}
    return [member for member in members if member.pid in pids or pids & set(_ancestors(member))]


def _ancestors(member: Member) -> list[int]:
    with contextlib.suppress(Exception):
        return [parent.pid for parent in member.process.parents()]
    return []


def _continue(member: Member) -> None:
    with contextlib.suppress(Exception):
        member.process.resume()


def _once(action: Callable[[], None]) -> Callable[[], None]:
    pending = [action]

    def run() -> None:
        if pending:
            pending.pop()()

    return run
