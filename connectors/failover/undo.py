"""The file that says what a failover changes, each time before it is changed: what it takes to take it back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from connect.core.errors import ConfigError
from connectors.failover.model import GroupMove

FORMAT: Final = 1
#: An interrupted run that nobody goes on with for so long is another one's.
OLD_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class GroupBefore:
    """What a group had stored on the target: ``before`` None for nothing; ``after`` is what it was moved to."""

    group: str
    topic: str
    partition: int
    before: int | None
    before_metadata: str
    after: int


@dataclass(frozen=True, slots=True)
class StartBefore:
    """The offset of the last record that the flow back had stored of a partition; None for none."""

    topic: str
    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Undo:
    """``starts`` are of the flow back, ``begins`` of the flow itself, which a failback begins; ``denied`` are topics of
    the source whose writers are refused."""

    source: str
    target: str
    groups: tuple[GroupBefore, ...] = ()
    starts: tuple[StartBefore, ...] = ()
    begins: tuple[StartBefore, ...] = ()
    denied: tuple[str, ...] = ()
    is_finished: bool = False
    file: Path = field(default=Path(), compare=False)

    @property
    def changes(self) -> bool:
        """Whether there is anything to take back."""
        return bool(self.groups or self.starts or self.begins or self.denied)

    def with_moves(self, moves: Sequence[GroupMove]) -> Undo:
        """What is there already was written by a run that was interrupted: its ``before`` is the older one."""
        known = {(one.group, one.topic, one.partition): one for one in self.groups}
        for one in moves:
            key = (one.group, *one.target)
            if key in known:
                known[key] = replace(known[key], after=one.after)
            else:
                known[key] = GroupBefore(*key, one.before, one.before_metadata, one.after)
        return replace(self, groups=tuple(known.values()), is_finished=False)

    def with_starts(self, starts: Sequence[StartBefore]) -> Undo:
        return replace(self, starts=_with(self.starts, starts), is_finished=False)

    def with_begins(self, begins: Sequence[StartBefore]) -> Undo:
        return replace(self, begins=_with(self.begins, begins), is_finished=False)

    def with_denied(self, topics: Sequence[str]) -> Undo:
        return replace(self, denied=tuple(sorted({*self.denied, *topics})), is_finished=False)

    def write(self) -> Path | None:
        """To its file, all or nothing, and on disk when this returns: as what the one of another run that was there is
        kept, if one was. Raises OSError, and as :func:`begin`."""
        kept = None
        if self.file.exists() and interrupted(self.file, self.source, self.target) is None:
            if not self.changes:
                return None
            if read(self.file).changes:
                kept = _keep_another(self.file)
        self._put()
        return kept

    def finish(self) -> None:
        """In place of what the file says: the run was taken back but for this, and nobody goes on with it. Raises
        OSError."""
        replace(self, is_finished=True)._put()

    def _put(self) -> None:
        text = json.dumps(_to_json(self), indent=1)
        beside = self.file.with_name(self.file.name + ".new")
        with beside.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.file)


def _with(known: Sequence[StartBefore], more: Sequence[StartBefore]) -> tuple[StartBefore, ...]:
    found = {(one.topic, one.partition): one for one in known}
    for one in more:
        before = found.get((one.topic, one.partition))
        found[one.topic, one.partition] = replace(before, after=one.after) if before else one
    return tuple(found.values())


def interrupted(file: Path, source: str, target: str) -> Undo | None:
    """What a run that was interrupted has written; None where there is none that is to be gone on with. Raises as
    :func:`begin`."""
    if not file.exists():
        return None
    known = read(file)
    if (known.source, known.target) != (source, target):
        raise ConfigError(f"it is of a failover from {known.source} to {known.target}", "--undo-file", str(file))
    return known if not known.is_finished and time.time() - file.stat().st_mtime < OLD_S else None


def begin(file: Path, source: str, target: str) -> Undo:
    """The one of a run that was interrupted goes on; else a new one, before whose first change the one that is there is
    kept under another name: it is done, or was not gone on with for a day, and what it says was there before is not
    what is there now. Where nothing is to be changed any more, the one that is there stays what takes it back.

    Raises ConfigError where the file is something else.
    """
    return interrupted(file, source, target) or Undo(source, target, file=file)


def _keep_another(file: Path) -> Path:
    number = 1
    while (kept := file.with_name(f"{file.stem}.{number}{file.suffix}")).exists():
        number += 1
    file.rename(kept)
    return kept


def read(file: Path) -> Undo:
    """Raises ConfigError where it cannot be read, or is no such file."""
    try:
        document = json.loads(file.read_text())
        if document["format"] != FORMAT:
            raise ConfigError(f"its format is {document['format']}, and this Heliograph knows {FORMAT}", file=str(file))
        return Undo(
            source=document["from"],
            target=document["to"],
            groups=tuple(GroupBefore(**_known(GroupBefore, one)) for one in document["groups"]),
            starts=tuple(StartBefore(**_known(StartBefore, one)) for one in document["starts"]),
            begins=tuple(StartBefore(**_known(StartBefore, one)) for one in document.get("begins", ())),
            denied=tuple(document["denied"]),
            is_finished=bool(document["finished"]),
            file=file,
        )
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", file=str(file)) from None
    except (ValueError, LookupError, TypeError):
        raise ConfigError("this is no undo file of heliograph failover", file=str(file)) from None


def _known(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def _to_json(undo: Undo) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "from": undo.source,
        "to": undo.target,
        "finished": undo.is_finished,
        "groups": [{name: getattr(one, name) for name in GroupBefore.__dataclass_fields__} for one in undo.groups],
        "starts": [{name: getattr(one, name) for name in StartBefore.__dataclass_fields__} for one in undo.starts],
        "begins": [{name: getattr(one, name) for name in StartBefore.__dataclass_fields__} for one in undo.begins],
        "denied": list(undo.denied),
    }
