"""Report on the consumer groups of a flow: where they are on both clusters, whether they are synced into the target,
and whether they could move now, step by step with the command of each, as ``heliograph failover`` would plan it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from connect.core.errors import ClusterUnreachable
from connect.core.wording import counted
from connect.kafka.concurrency import together, wall_ms
from connect.kafka.log.committed_offsets import GroupListing, Partition, list_groups
from connect.kafka.log.compacted_topic import LogRecord, read_if_exists
from connect.kafka.log.offsets import LATEST, known_offsets
from connectors import flow_progress
from connectors.checkpoint.group_checkpoints import why_no_checkpoints
from connectors.checkpoint.group_offset_sync import AHEAD, why_left
from connectors.config.connector_configs import CheckpointSettings
from connectors.failover import clusters_and_lease
from connectors.failover.clusters_and_lease import LeaseRecord, Site
from connectors.failover.collect_snapshot import collect, groups_now
from connectors.failover.drain import without_heartbeats
from connectors.failover.execute import Rehearsal, rehearse
from connectors.failover.failback_and_undo import newest
from connectors.failover.journal import FailoverRun, RunState, read_runs
from connectors.failover.offset_lookup import LEADER_S
from connectors.failover.plan import FailoverOptions, GroupOutcome, Plan, by_group, plan
from connectors.failover.snapshot import DIFFERS, GroupFinding, GroupMove, Groups, How
from connectors.failover.words import (
    Line,
    Tone,
    blocked_lines,
    described,
    group_argument,
    move_as_json,
    plan_as_json,
    plan_lines,
    rehearsal_lines,
    summary,
    verified_line,
)
from connectors.formats.mirror_records import Checkpoint

#: Groups whose offsets one report reads; a search finds the others.
MOST_READ: Final = 200
#: The placeholder of the operator's file in commands.
_FILE: Final = "mm2.properties"
_REST: Final = "http://localhost:8083"
_GOOD, _WARN, _BAD, _QUIET = "good", "warn", "bad", "quiet"


@dataclass(frozen=True, slots=True)
class GroupsSeen:
    """What both clusters answered. ``read`` groups have offsets in ``groups``; ends are by partition of each cluster;
    ``checkpoint_ms`` is when a group's last checkpoint was written."""

    read: Sequence[str]
    groups: Groups
    at_source: Mapping[str, GroupListing]
    at_target: Mapping[str, GroupListing]
    source_ends: Mapping[Partition, int] = field(default_factory=dict)
    target_ends: Mapping[Partition, int] = field(default_factory=dict)
    checkpoint_ms: Mapping[str, int] = field(default_factory=dict)


async def read_groups(site: Site, search: str, group: str) -> tuple[GroupsSeen, int]:
    """Read the groups of the source whose names contain ``search``, or ``group`` alone. Return also how many match.
    Raises HeliographError if a cluster does not answer."""
    at_source, at_target = await together("groups", [list_groups(site.source), list_groups(site.target)])
    matching = sorted(name for name, one in at_source.items() if one.has_offsets and _matches(name, search, group))
    read = matching[:MOST_READ]
    groups = await groups_now(site, FailoverOptions(takes=frozenset(read).__contains__))
    ends = [
        known_offsets(site.source, {one.source for one in groups.moves}, LATEST, leader_s=LEADER_S),
        known_offsets(site.target, {one.target for one in groups.moves}, LATEST, leader_s=LEADER_S),
    ]
    (source_ends, _), (target_ends, _) = await together("ends of partitions", ends)
    written = await _checkpoint_ms(site, frozenset(read))
    return GroupsSeen(read, groups, at_source, at_target, source_ends, target_ends, written), len(matching)


def _matches(name: str, search: str, group: str) -> bool:
    return name == group if group else search.lower() in name.lower()


async def _checkpoint_ms(site: Site, groups: Collection[str]) -> dict[str, int]:
    """Return when the last checkpoint of each group was written."""
    found: dict[str, int] = {}

    def take(record: LogRecord) -> None:
        group = Checkpoint.decode(record.key, record.value).group
        if group in groups:
            found[group] = max(record.timestamp_ms, found.get(group, -1))

    await read_if_exists(site.target, site.checkpoints.checkpoints_topic, take, read_committed=True, only_last=True)
    return found


def groups_as_json(
    settings: CheckpointSettings, seen: GroupsSeen, matching: int, top: int, *, with_partitions: bool, search: str = ""
) -> dict[str, Any]:
    """Return the ``top`` groups: first those that need attention, then those with the highest lag at the source.
    ``with_partitions``: also each group's ``top`` partitions with the highest lag whose topic contains ``search``."""
    moves, findings = by_group(seen.groups.moves), by_group(seen.groups.findings)
    rows = [_row(settings, seen, name, moves.get(name, []), findings.get(name, [])) for name in seen.read]
    rows.sort(key=lambda row: (not row["needs_attention"], -row["source_lag"], row["group"]))
    if with_partitions:
        for row in rows:
            row["partitions"] = _partitions(seen, moves.get(row["group"], []), search)[:top]
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "source": settings.source_alias,
        "target": settings.target_alias,
        "at_ms": wall_ms(),
        "sync": sync_off(settings) or f"every {settings.sync_interval_s} s",
        "matching": matching,
        "read": len(seen.read),
        "groups": rows[:top],
    }


def _row(
    settings: CheckpointSettings,
    seen: GroupsSeen,
    name: str,
    moves: Sequence[GroupMove],
    findings: Sequence[GroupFinding],
) -> dict[str, Any]:
    here, there = seen.at_source.get(name), seen.at_target.get(name)
    state = sync_state(settings, name, here, there, moves)
    by_map = [one for one in moves if one.how is not How.SYNCS]
    return {
        "group": name,
        "source_state": here.state if here else "",
        "target_state": there.state if there else "",
        "partition_count": len(moves),
        "exact": len(by_map),
        "by_syncs": len(moves) - len(by_map),
        "source_lag": sum(_lag(seen.source_ends, one.source, one.source_offset) for one in moves),
        "target_lag": sum(_lag(seen.target_ends, one.target, one.before) for one in moves),
        "not_on_target": sum(one.before is None for one in moves),
        "synced": state.why == "",
        "why_not_synced": state.why,
        "needs_attention": state.needs_attention,
        "checkpoint_ms": seen.checkpoint_ms.get(name),
        # Its states say that it is in use.
        "findings": [str(one) for one in findings if not one.rule.value.startswith("used ")],
    }


def _partitions(seen: GroupsSeen, moves: Sequence[GroupMove], search: str) -> list[dict[str, Any]]:
    """Return a group's partitions, those with the highest lag at the source first."""
    rows = [
        {
            **move_as_json(one),
            "source_lag": _lag(seen.source_ends, one.source, one.source_offset),
            "target_lag": None if one.before is None else _lag(seen.target_ends, one.target, one.before),
        }
        for one in moves
        if search.lower() in one.source[0].lower()
    ]
    return sorted(rows, key=lambda row: (-row["source_lag"], row["topic"], row["partition"]))


def _lag(ends: Mapping[Partition, int], partition: Partition, offset: int | None) -> int:
    """Return records between an offset and the end; 0 if either is unknown."""
    end = ends.get(partition)
    return 0 if end is None or offset is None or offset < 0 else max(end - offset, 0)


def sync_off(settings: CheckpointSettings) -> str:
    """Why no group of the flow is synced; empty if groups are."""
    if settings.emit_interval_s is None:
        return "off: emit.checkpoints.enabled = false"
    return "off: sync.group.offsets.enabled = false" if settings.sync_interval_s is None else ""


class SyncState(NamedTuple):
    """Why ``sync.group.offsets`` does not hold a group at its target offsets; empty if it does."""

    why: str = ""
    needs_attention: bool = False


def sync_state(
    settings: CheckpointSettings,
    name: str,
    here: GroupListing | None,
    there: GroupListing | None,
    moves: Sequence[GroupMove],
) -> SyncState:
    """Return whether a group with these ``moves`` is synced; ``here`` and ``there`` are its listings."""
    if why := sync_off(settings):
        return SyncState(why)
    if not settings.group_filter.should_replicate_group(name):
        return SyncState("filtered: groups and groups.exclude do not select it")
    if why := (why_no_checkpoints(name, here) if here else "") or why_left(there):
        return SyncState(why, needs_attention=True)
    if not moves:
        return SyncState("no partition of it is mirrored")
    if ahead := sum(one.goes_back > 0 for one in moves):
        return SyncState(f"{counted(ahead, 'partition')}: {AHEAD}", needs_attention=True)
    if waiting := sum(not one.is_done for one in moves):
        return SyncState(f"{counted(waiting, 'partition')} to be moved by a sync, every {settings.sync_interval_s} s")
    return SyncState()


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
        to_copy = flow_progress.together(without_heartbeats(lag.partitions, site.flow.policy)).records
    return MoveLook(*ends, found, "", rehearsal, held, newest(await read_runs(site)), to_copy)


def checklist_as_json(look: MoveLook, connector: str, now_ms: int, top: int, rest: str = "") -> dict[str, Any]:
    """Return the checklist and the plan with its ``top`` first rows of each list; ``rest`` as in :func:`checklist`."""
    steps = [one.to_json() for one in checklist(look, now_ms, rest or _REST)]
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
        "not_checked": list(_not_checked(look)),
    }


def _counts(found: Plan) -> dict[str, int]:
    of = Counter(one.outcome.value for one in found.groups)
    return {**{one.value: of[one.value] for one in GroupOutcome}, "moves": len(found.moves)}


def _cut(document: dict[str, Any], top: int) -> dict[str, Any]:
    """Keep the first entries of every list."""
    return {key: value[:top] if isinstance(value, list) else value for key, value in document.items()}


def checklist(look: MoveLook, now_ms: int, rest: str) -> list[MoveStep]:
    """Return the steps of docs/runbooks/planned-failover.md, each with its state now; commands use URL ``rest``."""
    to = f"--to {shlex.quote(look.target)}"
    groups = "".join(f" --group {shlex.quote(group_argument(one))}" for one in look.groups)
    failover = f"heliograph failover {_FILE} {to}{groups}"
    flow = shlex.quote(f"{look.source}->{look.target}")
    return [
        MoveStep("Go or no-go", *_verdict(look, now_ms), failover),
        MoveStep("Rehearsal", *_rehearsal(look, now_ms), f"{failover} --rehearse"),
        MoveStep("Drain and move", *_drain(look), f"{failover} --rest {shlex.quote(rest)} --execute"),
        MoveStep("Proof", *_proof(look, now_ms), f"heliograph verify {_FILE} --flow {flow}"),
        MoveStep("Undo", *_undo(look), f"heliograph undo {_FILE} {to}" if look.run is not None else ""),
    ]


_State = tuple[str, str, tuple[Line, ...]]


def _verdict(look: MoveLook, now_ms: int) -> _State:
    found = look.plan
    if found is None:
        return "no-go", _BAD, (Line(look.error, Tone.BAD),)
    lines = (
        Line(f"from {look.source} to {look.target}: {summary(found)}"),
        *plan_lines(found, now_ms),
        *(Line(f"note: {note}") for note in found.snapshot.notes),
    )
    if not found.can_go:
        return "no-go", _BAD, lines
    if found.blocked:
        return f"go for {len(found.groups) - len(found.blocked)} of {len(found.groups)}", _WARN, lines
    return "go", _GOOD, lines


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
    does = "The command shows what it would revert; add --execute to revert it. Groups that have read on stay."
    return "possible", _WARN, (Line(f"to undo: {described(look.run)}"), Line(does))


def _not_checked(look: MoveLook) -> Iterator[str]:
    """Yield what a worker cannot know of a move."""
    yield (
        f"The rights of the command's own user: it commits offsets on cluster {look.target}, reads both clusters and, "
        f"with --deny-writes, adds ACLs to cluster {look.source}. This worker reads with its own clients. Run "
        f"heliograph check {_FILE} with the command's file."
    )
    yield (
        f"The file: the command reads clusters and filters from {_FILE}, which stands for your file. This worker reads "
        "its connectors' configuration. Add --from if the file has several sources."
    )
    yield f"Writers: whether every producer of cluster {look.source} is stopped. The drain ends once all is copied."
    yield f"The reverse flow {look.target}->{look.source}: its names are taken to be the defaults."
    yield f"Your applications: whether they can reach cluster {look.target}, and have their own rights there."
