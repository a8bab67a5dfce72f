"""Which flows are alive, and over which flows records come to a cluster, as its heartbeats tell. Pure.

The worker of a flow ``us->eu`` writes heartbeats into ``heartbeats`` on eu: they say that the worker lives and gets to
its target. The flow mirrors those that are on us as ``us.heartbeats`` (and ``us.ap.heartbeats`` of a flow before it):
these say that records pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

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
    """A flow of the file: whether it mirrors heartbeats with other records, whether its worker sends any, and how
    often."""

    source: str
    target: str
    carries_beats: bool
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
    """How records come to ``cluster``: the clusters before it, the nearest first. ``in_file``: all its flows are in the
    file, and mirror heartbeats."""

    cluster: str
    topic: str
    through: tuple[str, ...]
    state: State
    age: Age | None
    in_file: bool = False


#: Of a flow or a way that should be alive.
_GONE: Final = (State.STOPPED, State.NONE)


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
            state = _state(age, _limit_s(flow, stale_s))
        found.append(FlowHealth(flow.source, flow.target, state, age, in_file=True))
    for seen in clusters.values():
        for source, target in sorted({flow for one in _own(seen) for flow in one.newest_ms}):
            if target == seen.alias and (source, target) not in listed:
                age = _age(_own(seen), (source, target), now_ms)
                found.append(FlowHealth(source, target, _state(age, stale_s), age, in_file=False))
    return found


def ways_told(wanted: Collection[Wanted], clusters: Iterable[Seen], now_ms: int, stale_s: float) -> list[Way]:
    """Of all clusters that could be read, by cluster and hops. One is alive while the heartbeats of any flow come over
    it in time: those of a flow that has stopped do not, and of a slow one nobody knows for a while."""
    limits_s = {(flow.source, flow.target): _limit_s(flow, stale_s) for flow in wanted}
    carried = {(flow.source, flow.target) for flow in wanted if flow.carries_beats}
    found = []
    for seen in clusters:
        for one in seen.told:
            if through := _through(seen.policies, one.topic):
                ages = {flow: _since(at_ms, now_ms) for flow, at_ms in one.newest_ms.items()}
                states = {_state(age, limits_s.get(flow, stale_s)) for flow, age in ages.items()} or {State.NONE}
                state = State.ALIVE if State.ALIVE in states else states.pop()
                in_file = all(hop in carried for hop in zip(through, (seen.alias, *through), strict=False))
                found.append(Way(seen.alias, one.topic, through, state, min(ages.values(), default=None), in_file))
    return sorted(found, key=lambda way: (way.cluster, len(way.through), way.through))


def has_stopped(flows: Collection[FlowHealth], ways: Iterable[Way]) -> bool:
    """Whether a flow of the file is not alive, or records do not pass over one: its worker may send heartbeats while
    nobody mirrors. A way on which nobody sends any now tells nothing."""
    sent_to = {flow.target for flow in flows if flow.state is State.ALIVE}
    return any(flow.in_file and flow.state in _GONE for flow in flows) or any(
        way.in_file and way.state in _GONE and way.through[-1] in sent_to for way in ways
    )


def _limit_s(flow: Wanted, stale_s: float) -> float:
    """How old the last heartbeat of a flow may be: three of its own intervals, where that is longer."""
    return max(stale_s, 3 * (flow.beats_every_s or 0))


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
