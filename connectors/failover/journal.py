"""The journal of moves: what each run changes, kept beside the lease in the topic of the offset map on the target.

Another operator, on any machine, takes back what one run did, and nothing that another did. A group's entry is written
in the transaction that moves the group: it is there if, and only if, the group was moved.
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

from connect.core.errors import PermanentError
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.committed_offsets import Partition
from connect.kafka.log.producer import OutRecord
from connectors.failover.clusters_and_lease import PARTITION_KEY, Lease, Site, decode_object, encode_key, stored
from connectors.failover.snapshot import GroupMove
from connectors.formats.position import text

FORMAT: Final = 2
_JOURNAL: Final = text("journal")
#: What an interrupted run has moved counts for so long if the source is gone.
OLD_MS: Final = 86_400_000
#: Runs that are over, and kept.
_KEPT: Final = 10


class RunState(StrEnum):
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
class FailoverRun:
    """What one run has changed.

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
    state: RunState = RunState.OPEN
    groups: Mapping[str, tuple[GroupBefore, ...]] = field(default_factory=dict)
    starts: tuple[StartBefore, ...] = ()
    begins: tuple[StartBefore, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether there is anything to take back."""
        return bool(self.groups or self.starts or self.begins or self.denied)


def before_of(moves: Sequence[GroupMove]) -> tuple[GroupBefore, ...]:
    """What moves of one group change."""
    return tuple(GroupBefore(one.group, *one.target, one.before, one.before_metadata, one.after) for one in moves)


async def read_runs(site: Site) -> list[FailoverRun]:
    """The runs of the site's flow, the newest last. Raises as :func:`connectors.failover.clusters_and_lease.stored`."""
    front = encode_key(site.flow.flow) + _JOURNAL
    kept = await stored(site.target, site.flow.map_topic, site.flow.flow)
    return decode_runs([value for key, value in kept.items() if key.startswith(front)])


def decode_runs(values: Iterable[bytes]) -> list[FailoverRun]:
    """Raises PermanentError for what a later version wrote."""
    entries = [decode_object(value) for value in values]
    if any(one.get("format") != FORMAT for one in entries):
        raise PermanentError("another version of Heliograph has written the journal of this failover: use that one")
    runs, groups = dict[str, FailoverRun](), dict[str, dict[str, tuple[GroupBefore, ...]]]()
    for one in entries:
        rows = _unpacked(one["rows"])
        if "group" in one:
            groups.setdefault(one["run"], {})[one["group"]] = tuple(GroupBefore(one["group"], *row) for row in rows)
        else:
            starts, begins = (tuple(StartBefore(*row) for row in some) for some in rows)
            runs[one["run"]] = FailoverRun(
                one["run"],
                one["from"],
                one["to"],
                one["owner"],
                one["command"],
                one["updated_ms"],
                RunState(one["state"]),
                starts=starts,
                begins=begins,
                denied=tuple(one["denied"]),
            )
    return sorted((replace(run, groups=groups.get(run.id, {})) for run in runs.values()), key=lambda run: run.id)


def _packed(rows: Any) -> str:
    """Of ten thousand partitions less than 100 kB: a record stays below ``max.message.bytes``."""
    return base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()


def _unpacked(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def denied_by(runs: Iterable[FailoverRun]) -> frozenset[str]:
    """Topics of the source whose writers any of the runs has refused."""
    return frozenset(topic for run in runs for topic in run.denied)


async def moved(site: Site) -> dict[tuple[str, Partition], int]:
    """Target offsets, by group and partition, that runs of the last day have given and that did not come to their ends.

    Raises as :func:`read_runs`.
    """
    runs = [run for run in await read_runs(site) if is_open(run, wall_ms())]
    rows = [row for run in runs for of_group in run.groups.values() for row in of_group]
    return {(row.group, (row.topic, row.partition)): row.after for row in rows}


def is_open(run: FailoverRun, now_ms: int) -> bool:
    """Whether a run was lately at work, and did not come to its end."""
    return run.state is RunState.OPEN and now_ms - run.updated_ms < OLD_MS


class Journal:
    """Written under a lease. ``run`` is what is known of the present run."""

    def __init__(self, site: Site, lease: Lease, run: FailoverRun, known: Sequence[FailoverRun] = ()) -> None:
        self._flow = site.flow.flow
        self._topic = site.flow.map_topic
        self._lease = lease
        self._old = [one for one in known if one.id != run.id]
        self.run = run

    @classmethod
    async def begin(cls, site: Site, lease: Lease) -> Journal:
        """Begin a run. Raises as :func:`read_runs`."""
        known = await read_runs(site)
        # Ids sort by time, and in the order of runs if clocks differ.
        at_ms = max(wall_ms(), int(known[-1].id.partition("-")[0]) + 1 if known else 0)
        name = f"{at_ms:015d}-{uuid.uuid4().hex[:8]}"
        return cls(site, lease, FailoverRun(name, site.flow.source_alias, site.flow.target_alias), known)

    @property
    def denied(self) -> frozenset[str]:
        """Topics whose writers are refused now, by this run or one before."""
        return denied_by([*self._old, self.run])

    async def store(
        self,
        *,
        state: RunState = RunState.OPEN,
        starts: Sequence[StartBefore] | None = None,
        begins: Sequence[StartBefore] | None = None,
        denied: Sequence[str] | None = None,
    ) -> None:
        """Before what it says is changed. None: as before; ``denied`` none: of earlier runs too. Raises as
        :meth:`Lease.store`."""
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
        # Runs that are too old to be taken back are forgotten.
        forgotten = [self._record(one.id, group, None) for one in old[:-_KEPT] for group in ("", *one.groups)]
        await self._lease.store(records=[*map(self._head, [*changed, run]), *forgotten])
        self.run, self._old = run, old[-_KEPT:]

    def of_group(self, group: str, rows: Sequence[GroupBefore]) -> OutRecord:
        """To be written in the transaction that changes the group; none of ``rows``: it was taken back."""
        plain = [(row.topic, row.partition, row.before, row.before_metadata, row.after) for row in rows]
        return self._record(self.run.id, group, {"group": group, "rows": _packed(plain)} if rows else None)

    def changed(self, group: str, rows: Sequence[GroupBefore]) -> None:
        """Take note of a group whose transaction was committed."""
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
