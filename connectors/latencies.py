"""How long what a task of ours writes is under way: from the time in a record to the target's acknowledgement. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connect.core.gauges import Rows
from connect.core.measures import Windowed

#: So many of a task have a series of their own, those that were written last; a scraper pays for each of them.
MOST: Final = 2_000
#: Java's attributes of ``MirrorCheckpointMetrics``; heartbeats have none there.
LATENCY: Final[Rows[Windowed]] = (
    ("latency_ms", "From its time to its acknowledgement, last.", lambda one, _: one.last),
    ("latency_ms_min", "Least such time.", lambda one, now_ms: one.least(now_ms)),
    ("latency_ms_max", "Greatest such time.", lambda one, now_ms: one.most(now_ms)),
    ("latency_ms_avg", "Mean of such times.", lambda one, now_ms: one.mean(now_ms)),
)
Labels = tuple[str, ...]


class Latencies:
    """Of one task, by labels; ``whole`` is of all that it wrote, and whatever labels it had."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._by_labels: OrderedDict[Labels, Windowed] = OrderedDict()
        self.whole = Windowed()

    def written(self, labels: Labels, sent_ms: int, now_ms: int) -> None:
        """A record of that time was acknowledged now."""
        taken_ms = max(now_ms - sent_ms, 0)
        self.whole.record(taken_ms, now_ms)
        self._by_labels.setdefault(labels, Windowed()).record(taken_ms, now_ms)
        self._by_labels.move_to_end(labels)
        while len(self._by_labels) > self._most:
            self._by_labels.popitem(last=False)

    def __iter__(self) -> Iterator[tuple[Labels, Windowed]]:
        return iter(self._by_labels.items())


class Task(NamedTuple):
    """Which task of which flow."""

    source: str
    target: str
    number: str


@dataclass(slots=True)
class Written:
    """What the tasks that run on a worker now have written."""

    checkpoints: dict[Task, Latencies] = field(default_factory=dict)
    heartbeats: dict[Task, Latencies] = field(default_factory=dict)
