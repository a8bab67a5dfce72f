"""What a soak run feeds and what it breaks, from a seed. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.kit.processes import Role

ALIAS: Final = "us"
#: The source's name in the flow that drops the records with the header :data:`DROPPED`.
FILTERING: Final = "sift"
DROPPED: Final = "spam"

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: Longer than a judge's reader needs for what was just written; where it is not, the run says so.
RETENTION_MS: Final = 30_000
#: Records this young are never compacted away, so that a judge's reader has seen them.
COMPACTION_LAG_MS: Final = 15_000
_QUICK_SEGMENTS: Final = {"segment.ms": "1000", "file.delete.delay.ms": "1000"}
_COMPACTED: Final = {
    **_QUICK_SEGMENTS,
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
}
_RETAINED: Final = {**_QUICK_SEGMENTS, "retention.ms": str(RETENTION_MS)}


class Fate(Enum):
    """What becomes of a topic's records at the source."""

    KEPT = "kept"
    COMPACTED = "compacted"
    THINNED = "compacted and deleted"
    FLEETING = "deleted by retention"
    CUT = "cut at its beginning"
    RECREATED = "deleted and made anew"
    GROWN = "grown"
    FILTERED = "filtered"
    LATE = "made later"

    @property
    def is_compacted(self) -> bool:
        return self in (Fate.COMPACTED, Fate.THINNED)

    @property
    def may_double(self) -> bool:
        """Whether records may come twice after a crash, if the log announces it."""
        return self in (Fate.COMPACTED, Fate.THINNED, Fate.FLEETING, Fate.CUT, Fate.FILTERED)


@dataclass(frozen=True)
class Feed:
    """A source topic; ``writers``: whether each is transactional; ``keys``: of how many, 0 for one per record."""

    topic: str
    fate: Fate
    partitions: int
    codec: str
    writers: tuple[bool, ...]
    value_bytes: int = 200
    batch_records: int = 40
    keys: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """The source's name in the flow that copies it."""
        return FILTERING if self.fate is Fate.FILTERED else ALIAS

    @property
    def remote(self) -> str:
        return f"{self.alias}.{self.topic}"

    @property
    def target_configs(self) -> Mapping[str, str] | None:
        """Of a remote topic that has to be there before: retention there would take away what is to be judged."""
        if self.fate not in (Fate.FLEETING, Fate.THINNED):
            return None
        policy = "compact" if self.fate.is_compacted else "delete"
        return {**self.configs, "retention.ms": "-1", "cleanup.policy": policy}


def feeds(seed: int) -> list[Feed]:
    chance = random.Random(f"{seed}/feeds")
    codecs = itertools.cycle(chance.sample(CODECS, len(CODECS)))

    def made(topic: str, fate: Fate, partitions: int, configs: Mapping[str, str] | None = None, keys: int = 0) -> Feed:
        writers = chance.choice(((False,), (True,), (True, True), (False, True)))
        sizes = {"value_bytes": chance.choice((20, 200, 2_000)), "batch_records": chance.choice((1, 10, 60))}
        return Feed(topic, fate, partitions, next(codecs), writers, **sizes, keys=keys, configs=configs or {})

    return [
        Feed("plain-2", Fate.KEPT, 2, next(codecs), (False,)),
        Feed("in.transactions", Fate.KEPT, 2, next(codecs), (True, True)),
        made("mixed_both", Fate.KEPT, 2),
        made("stamped", Fate.KEPT, 1, {"message.timestamp.type": "LogAppendTime"}),
        Feed("large", Fate.KEPT, 1, next(codecs), (False,), value_bytes=20_000, batch_records=5),
        made("compacted-a", Fate.COMPACTED, 2, {**_COMPACTED, "cleanup.policy": "compact"}, keys=40),
        made("compacted.b", Fate.COMPACTED, 1, {**_COMPACTED, "cleanup.policy": "compact"}, keys=5),
        made("thinned", Fate.THINNED, 2, {**_COMPACTED, **_RETAINED, "cleanup.policy": "compact,delete"}, keys=40),
        made("fleeting", Fate.FLEETING, 2, _RETAINED),
        made("cut", Fate.CUT, 2),
        made("anew", Fate.RECREATED, 2),
        made("grown", Fate.GROWN, 1),
        made("late", Fate.LATE, 2),
        made("filtered", Fate.FILTERED, 2),
    ]


class Act(Enum):
    """What is done; a topic's fate, or a blow."""

    KILL = "SIGKILL of the"
    FREEZE = "SIGSTOP of the"
    RESTART = "clean restart of the mirror"
    FREEZE_BROKER = "SIGSTOP of the broker"
    KILL_BROKER = "SIGKILL of the broker"
    GROW = "partitions added"
    RECREATED = "topic deleted and made anew"
    CUT = "records deleted before they are copied"
    LATE = "topic made"


@dataclass(frozen=True)
class Action:
    """One act; ``down``: played while the mirror is down; ``unread``: deletes what it has never read."""

    act: Act
    role: Role | None = None
    side: str = ""
    lasting_s: float = 0.0
    down: bool = False
    at_once: bool = False
    unread: bool = False

    def __str__(self) -> str:
        whom = self.role.value if self.role else self.side
        lasting = f" for {self.lasting_s:.1f} s" if self.lasting_s else ""
        return f"{self.act.value} {whom}".strip() + lasting + (", the mirror killed meanwhile" if self.down else "")


_KILLED: Final = (Role.WORKER, Role.SPARK_DRIVER, Role.SPARK_JVM, Role.PYTHON_WORKER)
#: What any run does, in an order of chance.
EVERYTHING: Final = (
    *(Action(Act.KILL, role) for role in _KILLED),
    Action(Act.FREEZE, Role.PYTHON_WORKER),
    Action(Act.FREEZE, Role.WORKER),
    Action(Act.FREEZE_BROKER, side="eu"),
    Action(Act.FREEZE_BROKER, side="us"),
    Action(Act.KILL_BROKER, side="eu"),
    Action(Act.RESTART),
    Action(Act.LATE),
    Action(Act.GROW),
    Action(Act.RECREATED),
    Action(Act.CUT),
    Action(Act.CUT, down=True),
)
#: What goes on behind that; only blows, and what may happen to a topic again and again.
_AGAIN: Final = (
    *(Action(Act.KILL, role) for role in (*_KILLED, Role.PYTHON_WORKER)),
    Action(Act.FREEZE, Role.PYTHON_WORKER),
    Action(Act.FREEZE_BROKER, side="eu"),
    Action(Act.KILL_BROKER, side="us"),
    Action(Act.KILL_BROKER, side="eu"),
    Action(Act.GROW),
    Action(Act.RECREATED),
    Action(Act.RECREATED, down=True),
    Action(Act.CUT),
    Action(Act.CUT, down=True),
)
_FROZEN_S: Final = (1.0, 9.0)
#: Of a broker: well within what clients and leases bear without being given up every time.
_BROKER_FROZEN_S: Final = (1.0, 6.0)
_AT_ONCE_SHARE: Final = 0.25


def actions(seed: int, wanted: Sequence[Action] = EVERYTHING) -> Iterator[Action]:
    """All of ``wanted`` in an order of chance, then more without end."""
    chance = random.Random(f"{seed}/actions")
    for action in itertools.chain(chance.sample(wanted, len(wanted)), _without_end(chance)):
        yield Action(
            action.act,
            action.role,
            action.side,
            _lasting_s(action.act, chance),
            action.down or (action.act is Act.RECREATED and chance.random() < 1 / 2),
            action.act in (Act.KILL, Act.FREEZE, Act.FREEZE_BROKER) and chance.random() < _AT_ONCE_SHARE,
            action.unread,
        )


def _without_end(chance: random.Random) -> Iterator[Action]:
    while True:
        yield chance.choice(_AGAIN)


def _lasting_s(act: Act, chance: random.Random) -> float:
    if act is Act.FREEZE:
        return chance.uniform(*_FROZEN_S)
    return chance.uniform(*_BROKER_FROZEN_S) if act is Act.FREEZE_BROKER else 0.0
