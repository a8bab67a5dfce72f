"""Which flows are alive, and over which flows records come to a cluster, as its heartbeats tell. Pure.

The worker of a flow ``us->eu`` writes heartbeats into ``heartbeats`` on eu: they say that the worker lives and gets to
its target. The flow mirrors those that are on us as ``us.heartbeats`` (and ``us.ap.heartbeats`` of a flow before it):
these say that records pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from connect.api.policy import ReplicationPolicy
from connectors.client import all_sources


class Age(NamedTuple):
    """Of the newest heartbeat, in seconds; ``at_least`` where it is older than all that was read."""

    seconds: float
    at_least: bool = False


class State(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"
    NONE = "no heartbeats"
    OFF = "heartbeats are off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Told:
    """What heartbeats in one topic tell: when the newest of each flow was sent, and since when they were read."""

    topic: str
    newest_ms: Mapping[tuple[str, str], int]
    read_from_ms: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One cluster: its heartbeats' topics, or why they could not be read; and how names are understood there."""

    alias: str
    told: Sequence[Told] = ()
    policies: Sequence[ReplicationPolicy] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A flow of the file: whether it mirrors records, whether its worker sends heartbeats, and how often."""

    source: str
    target: str
    mirrors: bool
    beats_every_s: int | None


@dataclass(frozen=True, slots=True)
class FlowHealth:
    source: str
    target: str
    state: State
    age: Age | None
    in_file: bool

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Way:
    """How records come to ``cluster``: the clusters before it, the nearest first."""

    cluster: str
    topic: str
    through: tuple[str, ...]
    state: State
    age: Age | None


def flows_told(wanted: Iterable[Wanted], clusters: Mapping[str, Seen], now_ms: int, stale_s: float) -> list[FlowHealth]:
    """Every flow of the file, and those that nobody wrote into the file and that have heartbeats all the same."""
    found = []
    listed = set()
    for flow in wanted:
        listed.add((flow.source, flow.target))
        seen = clusters[flow.target]
        age = _age(_own(seen), (flow.source, flow.target), now_ms)
        if seen.error:
            state = State.UNKNOWN
        elif flow.beats_every_s is None:
            state = State.OFF
        else:
            state = _state(age, max(stale_s, 3 * flow.beats_every_s))
        found.append(FlowHealth(flow.source, flow.target, state, age, in_file=True))
    for seen in clusters.values():
        for source, target in sorted({flow for one in _own(seen) for flow in one.newest_ms}):
            if target == seen.alias and (source, target) not in listed:
                age = _age(_own(seen), (source, target), now_ms)
                found.append(FlowHealth(source, target, _state(age, stale_s), age, in_file=False))
    return found


def ways_told(clusters: Iterable[Seen], now_ms: int, stale_s: float) -> list[Way]:
    """Of all clusters that could be read, by cluster and hops."""
    found = []
    for seen in clusters:
        for one in seen.told:
            if through := _through(seen.policies, one.topic):
                newest_ms = max(one.newest_ms.values(), default=None)
                age = None if newest_ms is None else _since(newest_ms, now_ms)
                found.append(Way(seen.alias, one.topic, through, _state(age, stale_s), age))
    return sorted(found, key=lambda way: (way.cluster, len(way.through), way.through))


def _through(policies: Collection[ReplicationPolicy], topic: str) -> tuple[str, ...]:
    """By the policy that knows most of it: flows to one cluster may name their topics differently."""
    return max((tuple(all_sources(policy, topic)) for policy in policies), key=len, default=())


def _own(seen: Seen) -> list[Told]:
    """The topics that workers write into."""
    return [one for one in seen.told if not _through(seen.policies, one.topic)]


def _age(told: Iterable[Told], flow: tuple[str, str], now_ms: int) -> Age | None:
    """None where there is no heartbeat of the flow, in a topic that was read whole."""
    least: Age | None = None
    for one in told:
        if (newest_ms := one.newest_ms.get(flow)) is not None:
            return _since(newest_ms, now_ms)
        if one.read_from_ms is not None:
            least = _since(one.read_from_ms, now_ms)._replace(at_least=True)
    return least


def _since(at_ms: int, now_ms: int) -> Age:
    # The clocks of two machines differ by a little.
    return Age(max(now_ms - at_ms, 0) / 1000)


def _state(age: Age | None, stale_s: float) -> State:
    if age is None:
        return State.NONE
    return State.STOPPED if age.seconds > stale_s or age.at_least else State.ALIVE
