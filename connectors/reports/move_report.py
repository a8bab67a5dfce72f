"""Report whether the groups of a flow could move now, as ``heliograph failover`` would plan it, step by step.

The report changes nothing. Each step has the command that does it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from connect.core.errors import ClusterUnreachable
from connect.core.wording import counted
from connect.kafka.concurrency import wall_ms
from connectors.failover import clusters_and_lease
from connectors.failover.clusters_and_lease import LeaseRecord, Site
from connectors.failover.collect_snapshot import collect
from connectors.failover.drain import without_heartbeats
from connectors.failover.execute import Rehearsal, rehearse
from connectors.failover.failback_and_undo import newest
from connectors.failover.journal import FailoverRun, RunState, read_runs
from connectors.failover.plan import FailoverOptions, GroupOutcome, Plan, plan
from connectors.failover.snapshot import DIFFERS
from connectors.failover.words import (
    Line,
    Tone,
    blocked_lines,
    described,
    group_argument,
    plan_as_json,
    plan_lines,
    rehearsal_lines,
    summary,
    verified_line,
)
from connectors.flow_progress import together

#: The placeholder of the operator's file in commands.
FILE: Final = "mm2.properties"
REST: Final = "http://localhost:8083"
_GOOD, _WARN, _BAD, _QUIET = "good", "warn", "bad", "quiet"


@dataclass(frozen=True, slots=True)
class MoveLook:
    """What was read. ``plan`` is None if the target does not answer, for the reason ``error``. ``lease`` is that of an
    operator who works on it now; ``run`` is the newest one that an undo would revert. ``to_copy`` is how many
    records, without heartbeats, the flow has not copied; None if unknown."""

    source: str
    target: str
    groups: tuple[str, ...]
    plan: Plan | None
    error: str = ""
    rehearsal: Rehearsal | None = None
    lease: LeaseRecord | None = None
    run: FailoverRun | None = None
    to_copy: int | None = None


@dataclass(frozen=True, slots=True)
class MoveStep:
    """A step of the checklist: its state in one ``word`` of a ``tone``, ``lines`` that explain it, and its command."""

    name: str
    word: str
    tone: str
    lines: tuple[Line, ...]
    command: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "lines": [one._asdict() for one in self.lines]}


async def look_at_move(site: Site, groups: Sequence[str], *, rehearses: bool) -> MoveLook:
    """Plan a move of ``groups``, or of those that the group filter selects. ``rehearses``: also read and compare
    records. Changes nothing; raises HeliographError if a cluster fails within the read."""
    takes = frozenset(groups).__contains__ if groups else site.checkpoints.group_filter.should_replicate_group
    options = FailoverOptions(takes=takes, named=frozenset(groups))
    ends = site.flow.source_alias, site.flow.target_alias, tuple(groups)
    try:
        # Because a viewer of REST may have no right to read the topics.
        rehearsal = await rehearse(site, options, names_records=False) if rehearses else None
        found = plan(await collect(site, options), options) if rehearsal is None else rehearsal.plan
    except ClusterUnreachable as error:
        return MoveLook(*ends, None, str(error))
    lease = await clusters_and_lease.look(site.target, site.flow.map_topic, site.flow.flow)
    held = lease if lease is not None and lease.is_held(wall_ms()) else None
    lag, to_copy = found.snapshot.lag, None
    if lag is not None and not lag.unknown:
        to_copy = together(without_heartbeats(lag.partitions, site.flow.policy)).records
    return MoveLook(*ends, found, "", rehearsal, held, newest(await read_runs(site)), to_copy)


def move_as_json(look: MoveLook, connector: str, now_ms: int, top: int, rest: str = "") -> dict[str, Any]:
    """Return the checklist and the plan with its ``top`` first rows of each list; ``rest`` as in :func:`checklist`."""
    steps = [one.to_json() for one in checklist(look, now_ms, rest or REST)]
    found = None if look.plan is None else _cut(plan_as_json(look.plan), top)
    return {
        "connector": connector,
        "flow": f"{look.source}->{look.target}",
        "source": look.source,
        "target": look.target,
        "at_ms": now_ms,
        "asked": list(look.groups),
        "steps": steps,
        "plan": found,
        "counts": {} if look.plan is None else _counts(look.plan),
        "operator": None if look.lease is None else str(look.lease),
        "not_checked": not_checked(look),
    }


def _counts(found: Plan) -> dict[str, int]:
    of = Counter(one.outcome.value for one in found.groups)
    return {**{one.value: of[one.value] for one in GroupOutcome}, "moves": len(found.moves)}


def _cut(document: dict[str, Any], top: int) -> dict[str, Any]:
    """Keep the first entries of every list."""
    return {key: value[:top] if isinstance(value, list) else value for key, value in document.items()}


def checklist(look: MoveLook, now_ms: int, rest: str = REST) -> list[MoveStep]:
    """Return the steps of docs/runbooks/planned-failover.md, each with its state now. Commands use the URL
    ``rest``."""
    to = f"--to {shlex.quote(look.target)}"
    groups = "".join(f" --group {shlex.quote(group_argument(one))}" for one in look.groups)
    failover = f"heliograph failover {FILE} {to}{groups}"
    flow = shlex.quote(f"{look.source}->{look.target}")
    return [
        MoveStep("Go or no-go", *_verdict(look, now_ms), failover),
        MoveStep("Rehearsal", *_rehearsal(look, now_ms), f"{failover} --rehearse"),
        MoveStep("Drain and move", *_drain(look), f"{failover} --rest {shlex.quote(rest)} --execute"),
        MoveStep("Proof", *_proof(look, now_ms), f"heliograph verify {FILE} --flow {flow}"),
        MoveStep("Undo", *_undo(look), f"heliograph undo {FILE} {to}" if look.run is not None else ""),
    ]


_State = tuple[str, str, tuple[Line, ...]]


def _verdict(look: MoveLook, now_ms: int) -> _State:
    found = look.plan
    if found is None:
        return "no-go", _BAD, (Line(look.error, Tone.BAD),)
    lines = (Line(f"from {look.source} to {look.target}: {summary(found)}"), *plan_lines(found, now_ms))
    notes = tuple(Line(f"note: {note}") for note in found.snapshot.notes)
    if not found.can_go:
        return "no-go", _BAD, (*lines, *notes)
    if found.blocked:
        return f"go for {len(found.groups) - len(found.blocked)} of {len(found.groups)}", _WARN, (*lines, *notes)
    return "go", _GOOD, (*lines, *notes)


def _rehearsal(look: MoveLook, now_ms: int) -> _State:
    done = look.rehearsal
    if done is None:
        about = "A rehearsal does all that changes nothing: it compares records, reads from each target offset and "
        return "not run", _QUIET, (Line(f"{about}estimates how long the move takes."),)
    verdict = blocked_lines(done.plan)
    lines = tuple(one for one in rehearsal_lines(done, now_ms) if Line(one.text.strip(), one.tone) not in verdict)
    bad = done.read < len(done.plan.moves) or any(one.outcome == DIFFERS for one in done.proofs)
    return ("problems", _BAD, lines) if bad else ("passed", _GOOD, lines)


def _drain(look: MoveLook) -> _State:
    before = Line(
        f"First stop the consumers and producers of cluster {look.source}. If you cannot find all producers, add "
        "--deny-writes."
    )
    does = Line(
        "The command waits until all is copied, stops the flow, checks a sample, and moves the groups. "
        "Without --rest it says when to stop the mirror."
    )
    if look.lease is not None:
        return f"running: {look.lease.step or 'begin'}", _WARN, (Line(str(look.lease), Tone.WARN),)
    if (run := look.run) is not None:
        tone, word = (_GOOD, "moved") if run.state is RunState.DONE else (_WARN, "not finished")
        more = () if run.state is RunState.DONE else (Line("Run the same command again: it continues.", Tone.WARN),)
        return word, tone, (Line(described(run)), *more)
    if look.to_copy is None or look.to_copy < 0:
        return "unknown", _WARN, (Line(f"How far {look.source}->{look.target} is behind is unknown."), before, does)
    if not look.to_copy:
        return "drained now", _GOOD, (before, does)
    return f"{counted(look.to_copy, 'record')} to copy", _QUIET, (before, does)


def _proof(look: MoveLook, now_ms: int) -> _State:
    about = Line(
        "Before the first group moves, the command compares the next records of each group on both clusters, and "
        "leaves groups whose records differ."
    )
    lines = (about,) if look.plan is None else (about, verified_line(look.plan.snapshot, now_ms))
    differ = 0 if look.rehearsal is None else sum(one.outcome == DIFFERS for one in look.rehearsal.proofs)
    if differ:
        return f"{differ} differ", _BAD, lines
    if look.plan is not None and look.plan.snapshot.verified is not None and look.plan.snapshot.verified.differences:
        return "differences", _BAD, lines
    if look.rehearsal is None:
        return "by the command", _QUIET, (*lines, Line("A rehearsal compares the next records now."))
    return "rehearsed", _GOOD, lines


def _undo(look: MoveLook) -> _State:
    if look.run is None:
        return "nothing to undo", _QUIET, (Line(f"The journal on cluster {look.target} has no move of this flow."),)
    return (
        "possible",
        _WARN,
        (
            Line(f"to undo: {described(look.run)}"),
            Line("The command shows what it would revert; add --execute to revert it. Groups that have read on stay."),
        ),
    )


def not_checked(look: MoveLook) -> list[str]:
    """Return what a worker cannot know of a move."""
    return list(_not_checked(look))


def _not_checked(look: MoveLook) -> Iterator[str]:
    yield (
        f"The rights of the command's own user: it commits offsets on cluster {look.target}, reads both clusters and, "
        f"with --deny-writes, adds ACLs to cluster {look.source}. This worker reads with its own clients. Run "
        f"heliograph check {FILE} with the command's file."
    )
    yield (
        f"The file: the command reads clusters and filters from {FILE}, which stands for your file. This worker reads "
        "its connectors' configuration. Add --from if the file has several sources."
    )
    yield f"Writers: whether every producer of cluster {look.source} is stopped. The drain ends once all is copied."
    yield f"The reverse flow {look.target}->{look.source}: its names are taken to be the defaults."
    yield f"Your applications: whether they can reach cluster {look.target}, and have their own rights there."
