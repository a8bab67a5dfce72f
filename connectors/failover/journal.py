"""The journal of moves: what each run changes, kept beside the lease in the topic of the offset map on the target.

Another operator, on any machine, goes on with a run that was interrupted, or takes back what a run did. A group's entry
is written in the transaction that moves the group: it is there if, and only if, the group was moved.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from connect.core.errors import PermanentError
from connect.kafka.group_offsets import Partition
from connect.kafka.producer import OutRecord
from connectors.failover.lease import PARTITION_KEY, Lease, decode_object, encode_key, stored
from connectors.failover.site import Site
from connectors.failover.snapshot import GroupMove
from connectors.positions import text

FORMAT: Final = 1
_JOURNAL: Final = text("journal")
#: An interrupted run that is not continued for so long is over: another run begins.
OLD_MS: Final = 86_400_000
#: Runs that are over, and kept.
_KEPT: Final = 10
#: Rows in a record, which stays below ``max.message.bytes``.
_ROWS: Final = 1000


class State(StrEnum):
    OPEN = "open"  # it is under way, was interrupted, or has left groups behind
    DONE = "done"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class GroupBefore:
    """What a group had committed on the target: ``before`` None for nothing; ``after`` is what it was moved to."""

    group: str
    topic: str
    partition: int
    before: int | None
    before_metadata: str
    after: int


@dataclass(frozen=True, slots=True)
class StartBefore:
    """The offset of the last record that a flow had stored of a partition; None for none."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run, with those that went on with it, has changed.

    Args:
        starts: Where the flow back begins.
        begins: Where the flow itself begins; a failback stores them.
        denied: Topics of the source whose writers are refused.
        updated_ms: When the run was last at work, in milliseconds since 1970.
    """

    id: str
    source: str
    target: str
    owner: str = ""
    command: str = ""
    updated_ms: int = 0
    state: State = State.OPEN
    groups: Mapping[str, tuple[GroupBefore, ...]] = field(default_factory=dict)
    starts: tuple[StartBefore, ...] = ()
    begins: tuple[StartBefore, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to take back."""
        return bool(self.groups or self.starts or self.begins or self.denied)

    def rows(self, moves: Sequence[GroupMove]) -> tuple[GroupBefore, ...]:
        """Of one group, with what is known of it already: what it had before the first of the runs that go on with each
        other counts."""
        found: dict[Partition, GroupBefore] = {}
        for one in moves:
            for known in self.groups.get(one.group, ()):
                found[known.topic, known.partition] = known
            before = found.get(one.target)
            found[one.target] = (
                replace(before, after=one.after)
                if before
                else GroupBefore(one.group, *one.target, one.before, one.before_metadata, one.after)
            )
        return tuple(found.values())


def with_starts(known: Sequence[StartBefore], more: Sequence[StartBefore]) -> tuple[StartBefore, ...]:
    """``known`` with ``more``; what was before the first of them counts."""
    found = {(one.topic, one.partition): one for one in known}
    for one in more:
        before = found.get((one.topic, one.partition))
        found[one.topic, one.partition] = replace(before, after=one.after) if before else one
    return tuple(found.values())


def moved(run: Run | None) -> dict[tuple[str, Partition], int]:
    """Target offsets that a run has given to groups, by group and partition."""
    rows = [] if run is None else [row for of_group in run.groups.values() for row in of_group]
    return {(row.group, (row.topic, row.partition)): row.after for row in rows}


async def read_runs(site: Site) -> list[Run]:
    """The runs of the site's flow, the newest last. Raises as :func:`connectors.failover.lease.stored`."""
    front = encode_key(site.flow.flow) + _JOURNAL
    kept = await stored(site.target, site.flow.map_topic, site.flow.flow)
    entries = [decode_object(value) for key, value in kept.items() if key.startswith(front)]
    return decode_runs(entries)


def decode_runs(entries: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Raises PermanentError for what a later version wrote."""
    if any(one.get("format") != FORMAT for one in entries):
        raise PermanentError("a later Heliograph has written the journal of this failover: use that one")
    runs = {
        one["run"]: Run(
            one["run"],
            one["from"],
            one["to"],
            one["owner"],
            one["command"],
            one["updated_ms"],
            State(one["state"]),
            denied=tuple(one["denied"]),
        )
        for one in entries
        if one["kind"] == "run"
    }
    for one in entries:
        run = runs.get(one["run"])
        if run is None or one["kind"] == "run":
            continue
        if one["kind"] == "group":
            rows = tuple(GroupBefore(one["name"], **row) for row in one["rows"])
            groups = {**run.groups, one["name"]: (*run.groups.get(one["name"], ()), *rows)}
            runs[run.id] = replace(run, groups=groups)
        elif one["kind"] == "starts":
            runs[run.id] = replace(run, starts=(*run.starts, *(StartBefore(**row) for row in one["rows"])))
        else:
            runs[run.id] = replace(run, begins=(*run.begins, *(StartBefore(**row) for row in one["rows"])))
    return sorted(runs.values(), key=lambda run: run.id)


def denied_by(runs: Iterable[Run]) -> frozenset[str]:
    """Topics of the source whose writers any of the runs has refused."""
    return frozenset(topic for run in runs for topic in run.denied)


async def interrupted(site: Site) -> Run | None:
    """The newest run, if it did not come to its end and is not too old to go on with. Raises as :func:`read_runs`."""
    runs = await read_runs(site)
    return runs[-1] if runs and is_open(runs[-1], _now_ms()) else None


def is_open(run: Run, now_ms: int) -> bool:
    """Whether a run may be gone on with."""
    return run.state is State.OPEN and now_ms - run.updated_ms < OLD_MS


class Journal:
    """Written under a lease. ``run`` is what is known of the present run."""

    def __init__(self, site: Site, lease: Lease, run: Run, known: Sequence[Run] = ()) -> None:
        self._flow = site.flow.flow
        self._topic = site.flow.map_topic
        self._lease = lease
        self._old = [one for one in known if one.id != run.id]
        self.run = run

    @classmethod
    async def begin(cls, site: Site, lease: Lease) -> Journal:
        """Go on with a run that was interrupted, or begin another. Raises as :func:`read_runs`."""
        known = await read_runs(site)
        if known and is_open(known[-1], _now_ms()):
            return cls(site, lease, known[-1], known)
        # Ids sort by time.
        name = f"{_now_ms():015d}-{uuid.uuid4().hex[:8]}"
        return cls(site, lease, Run(name, site.flow.source_alias, site.flow.target_alias), known)

    async def store(
        self,
        *,
        state: State = State.OPEN,
        starts: Sequence[StartBefore] | None = None,
        begins: Sequence[StartBefore] | None = None,
        denied: Sequence[str] | None = None,
        replaces: bool = False,
    ) -> None:
        """Before what it says is changed. ``starts`` and ``begins`` come to those that are known, or with ``replaces``
        are all that is left of them; ``denied`` none: of earlier runs too. Raises as :meth:`Lease.store`."""
        known = ((), ()) if replaces else (self.run.starts, self.run.begins)
        run = replace(
            self.run,
            owner=self._lease.record.owner,
            command=self._lease.record.command,
            updated_ms=_now_ms(),
            state=state,
            starts=self.run.starts if starts is None else with_starts(known[0], starts),
            begins=self.run.begins if begins is None else with_starts(known[1], begins),
            denied=self.run.denied if denied is None else tuple(denied),
        )
        records = [self._record(run.id, "run", "", 0, _head(run))]
        for kind, rows, before in (("starts", run.starts, self.run.starts), ("begins", run.begins, self.run.begins)):
            if rows != before:
                records += self._parts(run.id, kind, "", [asdict(row) for row in rows], len(before))
        if denied is not None and not denied:
            self._old = [replace(one, denied=()) for one in self._old]
            records += [self._record(one.id, "run", "", 0, _head(one)) for one in self._old[-_KEPT:]]
        await self._lease.store(records=[*records, *self._forgotten()])
        self.run, self._old = run, self._old[-_KEPT:]

    @property
    def denied(self) -> frozenset[str]:
        """Topics whose writers are refused now, by this run or one before."""
        return denied_by([*self._old, self.run])

    def of_group(self, group: str, rows: Sequence[GroupBefore]) -> list[OutRecord]:
        """To be written in the transaction that changes the group; none of ``rows``: it was taken back."""
        plain = [{name: value for name, value in asdict(row).items() if name != "group"} for row in rows]
        known = self.run.groups.get(group, ())
        return self._parts(self.run.id, "group", group, plain, len(known))

    def changed(self, group: str, rows: Sequence[GroupBefore]) -> None:
        """Take note of a group whose transaction was committed."""
        groups = {**self.run.groups, group: tuple(rows)}
        if not rows:
            del groups[group]
        self.run = replace(self.run, groups=groups)

    def _parts(self, run: str, kind: str, name: str, rows: Sequence[Mapping[str, Any]], known: int) -> list[OutRecord]:
        parts = [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]
        written = [self._record(run, kind, name, at, {"rows": part}) for at, part in enumerate(parts)]
        emptied = range(len(parts), -(-known // _ROWS))
        return [*written, *(self._record(run, kind, name, at, None) for at in emptied)]

    def _forgotten(self) -> list[OutRecord]:
        """Tombstones of runs that are too old to be taken back."""
        found = []
        for run in self._old[:-_KEPT]:
            found.append(self._record(run.id, "run", "", 0, None))
            of_groups = [("group", name, len(rows)) for name, rows in run.groups.items()]
            of_flows = [("starts", "", len(run.starts)), ("begins", "", len(run.begins))]
            for kind, name, count in (*of_groups, *of_flows):
                found += self._parts(run.id, kind, name, [], count)
        return found

    def _record(self, run: str, kind: str, name: str, part: int, content: Mapping[str, Any] | None) -> OutRecord:
        key = encode_key(self._flow) + _JOURNAL + text(run) + text(kind) + text(name) + text(str(part))
        value = None
        if content is not None:
            value = json.dumps({"format": FORMAT, "run": run, "kind": kind, "name": name, **content}).encode()
        return OutRecord(self._topic, key, value, PARTITION_KEY)


def _head(run: Run) -> dict[str, Any]:
    return {
        "from": run.source,
        "to": run.target,
        "owner": run.owner,
        "command": run.command,
        "updated_ms": run.updated_ms,
        "state": run.state.value,
        "denied": list(run.denied),
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
