"""The journal of moves: what each run changes, stored with the lease in the offset map's topic on the target.

An operator on any machine can undo what one run did, and nothing that another run did. A group's entry is written in
the transaction that moves the group: it exists if, and only if, the group was moved.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from connect.core.errors import PermanentError, UnreadableRecord
from connect.core.jackson import decode_json
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.committed_offsets import Partition
from connect.kafka.log.producer import OutRecord
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.failover.clusters_and_lease import PARTITION_KEY, Lease, Site, decode_object, encode_key, stored
from connectors.failover.snapshot import GroupMove
from connectors.formats.position import text
from connectors.internal_topics import decompressed

FORMAT: Final = 2
_JOURNAL: Final = text("journal")
#: How long the moves of an interrupted run count if the source is gone.
OLD_MS: Final = 86_400_000
#: How many finished runs are kept.
_KEPT: Final = 10


class RunState(StrEnum):
    OPEN = "open"  # it is running, was interrupted, or did not move all groups
    DONE = "done"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class GroupBefore:
    """What a group had committed on the target; ``before`` is None if nothing; ``after`` is what it was moved to."""

    group: str
    topic: str
    partition: int
    before: int | None
    before_metadata: str
    after: int


@dataclass(frozen=True, slots=True)
class StartBefore:
    """The offset of the last record of a partition that a flow had stored; None if none."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class FailoverRun:
    """What one run has changed. ``starts``: where the reverse flow begins. ``begins``: where the flow itself begins; a
    failback stores them. ``denied``: topics of the source to which writes are denied. ``updated_ms``: when the run last
    wrote to the journal, in milliseconds since 1970."""

    id: str
    source: str
    target: str
    owner: str = ""
    command: str = ""
    updated_ms: int = 0
    state: RunState = RunState.OPEN
    groups: Mapping[str, tuple[GroupBefore, ...]] = field(default_factory=dict)
    starts: tuple[StartBefore, ...] = ()
    begins: tuple[StartBefore, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to undo."""
        return bool(self.groups or self.starts or self.begins or self.denied)


def before_of(moves: Sequence[GroupMove]) -> tuple[GroupBefore, ...]:
    """Return what the moves of one group change."""
    return tuple(GroupBefore(one.group, *one.target, one.before, one.before_metadata, one.after) for one in moves)


async def read_last_move(source: Cluster | None, target: Cluster, settings: MirrorSourceSettings) -> FailoverRun | None:
    """Return the failover or failback to the target of a flow that does not run; None if none ended, or one to the
    source came after it. The journal of that is on ``source``, which is None if it does not answer."""
    here = last_move(await runs_of(target, settings.map_topic, settings.flow))
    if here is None or source is None:
        return here
    turned = replace(settings, source_alias=settings.target_alias, target_alias=settings.source_alias)
    there = last_move(await runs_of(source, turned.map_topic, turned.flow))
    return None if there is not None and there.updated_ms > here.updated_ms else here


def last_move(runs: Sequence[FailoverRun]) -> FailoverRun | None:
    """Return the newest of ``runs`` if it is done and was not undone. An undo reverts what was changed, so a run that
    changed nothing counts only if none was undone after it."""
    undone_ms = max((run.updated_ms for run in runs if run.state is RunState.UNDONE), default=-1)
    kept = (run for run in reversed(runs) if run.state is not RunState.UNDONE)
    last = next((run for run in kept if run.changes or run.updated_ms > undone_ms), None)
    return last if last is not None and last.state is RunState.DONE else None


async def read_runs(site: Site) -> list[FailoverRun]:
    """Read the runs of the site's flow, the newest last. Raises PermanentError if a later version wrote them."""
    return await runs_of(site.target, site.flow.map_topic, site.flow.flow)


async def runs_of(target: Cluster, map_topic: str, flow: str) -> list[FailoverRun]:
    """Read the runs of a flow as :func:`read_runs` does."""
    front = encode_key(flow) + _JOURNAL
    kept = await stored(target, map_topic, flow)
    return decode_runs([value for key, value in kept.items() if key.startswith(front)])


def decode_runs(values: Iterable[bytes]) -> list[FailoverRun]:
    """Decode the journal. Raises PermanentError if another version wrote it, UnreadableRecord if it is damaged."""
    entries = [decode_object(value) for value in values]
    if any(one.get("format") != FORMAT for one in entries):
        raise PermanentError("another version of Heliograph wrote the journal of this failover. Run that version")
    try:
        return _runs(entries)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(f"the journal of this failover holds a record that cannot be read: {error!r}") from error


def _runs(entries: Sequence[Mapping[str, Any]]) -> list[FailoverRun]:
    runs, groups = dict[str, FailoverRun](), dict[str, dict[str, tuple[GroupBefore, ...]]]()
    for one in entries:
        rows = _unpacked(one["rows"])
        if "group" in one:
            groups.setdefault(one["run"], {})[one["group"]] = tuple(GroupBefore(one["group"], *row) for row in rows)
        else:
            starts, begins = (tuple(StartBefore(*row) for row in some) for some in rows)
            head = one["run"], one["from"], one["to"], one["owner"], one["command"], one["updated_ms"]
            state, denied = RunState(one["state"]), tuple(one["denied"])
            runs[one["run"]] = FailoverRun(*head, state, starts=starts, begins=begins, denied=denied)
    return sorted((replace(run, groups=groups.get(run.id, {})) for run in runs.values()), key=lambda run: run.id)


def _packed(rows: Any) -> str:
    """Compress rows: ten thousand partitions take less than 100 kB, so a record stays below ``max.message.bytes``."""
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def _unpacked(text: str) -> Any:
    """Read rows. Raises UnreadableRecord."""
    try:
        packed = base64.b64decode(text)
        return decode_json(decompressed(packed, "the journal of this failover holds a record that"))
    except (TypeError, ValueError, zlib.error) as error:
        raise UnreadableRecord(f"the journal of this failover holds a record that cannot be read: {error}") from error


def denied_by(runs: Iterable[FailoverRun]) -> frozenset[str]:
    """Return topics of the source to which any of the runs has denied writes."""
    return frozenset(topic for run in runs for topic in run.denied)


async def moved(site: Site) -> dict[tuple[str, Partition], int]:
    """Read target offsets, by group and partition, to which unfinished runs of the last day have moved groups."""
    runs = [run for run in await read_runs(site) if is_open(run, wall_ms())]
    rows = [row for run in runs for of_group in run.groups.values() for row in of_group]
    return {(row.group, (row.topic, row.partition)): row.after for row in rows}


def is_open(run: FailoverRun, now_ms: int) -> bool:
    """Whether a run is unfinished, and wrote to the journal within the last day."""
    return run.state is RunState.OPEN and now_ms - run.updated_ms < OLD_MS


class Journal:
    """The journal, written under a lease. ``run`` is the present run."""

    def __init__(self, site: Site, lease: Lease, run: FailoverRun, known: Sequence[FailoverRun] = ()) -> None:
        self._flow, self._topic, self._lease = site.flow.flow, site.flow.map_topic, lease
        self._old = [one for one in known if one.id != run.id]
        self.run = run

    @classmethod
    async def begin(cls, site: Site, lease: Lease) -> Journal:
        """Begin a run. Raises PermanentError if another version wrote the journal."""
        known = await read_runs(site)
        # Ids sort by time, and in the order of runs if clocks differ.
        at_ms = max(wall_ms(), int(known[-1].id.partition("-")[0]) + 1 if known else 0)
        name = f"{at_ms:015d}-{uuid.uuid4().hex[:8]}"
        return cls(site, lease, FailoverRun(name, site.flow.source_alias, site.flow.target_alias), known)

    @property
    def denied(self) -> frozenset[str]:
        """Topics to which this run or an earlier one denies writes."""
        return denied_by([*self._old, self.run])

    async def store(
        self,
        *,
        state: RunState = RunState.OPEN,
        starts: Sequence[StartBefore] | None = None,
        begins: Sequence[StartBefore] | None = None,
        denied: Sequence[str] | None = None,
    ) -> None:
        """Store what is about to be changed. None: unchanged; empty ``denied``: of earlier runs too. Raises
        FailoverInProgress."""
        run = replace(
            self.run,
            owner=self._lease.record.owner,
            command=self._lease.record.command,
            updated_ms=wall_ms(),
            state=state,
            starts=self.run.starts if starts is None else tuple(starts),
            begins=self.run.begins if begins is None else tuple(begins),
            denied=self.run.denied if denied is None else tuple(denied),
        )
        old = [replace(one, denied=()) for one in self._old] if denied is not None and not denied else self._old
        changed = [one for one, before in zip(old, self._old, strict=True) if one != before]
        # Runs that are too old to be undone are deleted.
        forgotten = [self._record(one.id, group, None) for one in old[:-_KEPT] for group in ("", *one.groups)]
        await self._lease.store(records=[*map(self._head, [*changed, run]), *forgotten])
        self.run, self._old = run, old[-_KEPT:]

    def of_group(self, group: str, rows: Sequence[GroupBefore]) -> OutRecord:
        """Return the record for the transaction that changes the group; without ``rows`` the move was undone."""
        plain = [(row.topic, row.partition, row.before, row.before_metadata, row.after) for row in rows]
        return self._record(self.run.id, group, {"group": group, "rows": _packed(plain)} if rows else None)

    def changed(self, group: str, rows: Sequence[GroupBefore]) -> None:
        """Note a group whose transaction was committed."""
        groups = {name: one for name, one in self.run.groups.items() if name != group}
        self.run = replace(self.run, groups={**groups, group: tuple(rows)} if rows else groups)

    def _head(self, run: FailoverRun) -> OutRecord:
        content = {
            "from": run.source,
            "to": run.target,
            "owner": run.owner,
            "command": run.command,
            "updated_ms": run.updated_ms,
            "state": run.state.value,
            "denied": list(run.denied),
            "rows": _packed([[astuple(one) for one in some] for some in (run.starts, run.begins)]),
        }
        return self._record(run.id, "", content)

    def _record(self, run: str, group: str, content: Mapping[str, Any] | None) -> OutRecord:
        key = encode_key(self._flow) + _JOURNAL + text(run) + text(group)
        value = None if content is None else json.dumps({"format": FORMAT, "run": run, **content}).encode()
        return OutRecord(self._topic, key, value, PARTITION_KEY)
