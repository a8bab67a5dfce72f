"""Judge a flow from facts, in words: its state, why, what to do, and what a failover would lose now. Commands, the log
and the dashboard show these sentences. Facts and verdicts cross process borders as JSON; nothing is read here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connect.core.model import State
from connect.core.wording import age_text, bytes_text, counted, named
from connectors.failover_readiness import FailoverReadiness, ago, copies, readiness
from connectors.flow_facts import (
    RECOVERING,
    STARTING,
    FlowFacts,
    LagFacts,
    PartitionFacts,
    differences_text,
    verified_text,
)
from connectors.flow_progress import since_text
from connectors.formats.types import QUARANTINED, FlowName, Wired

#: A flow whose oldest waiting record is older than this is behind. Positions are stored every 10 s.
BEHIND_MS: Final = 60_000
#: A slower change of the lag, in records a second, does not count.
_LEAST_TREND: Final = 1.0
#: The least share of the time in which a quota that delays requests explains a lag.
_MUCH_THROTTLED: Final = 0.1
#: Partitions and tasks that a sentence names.
_NAMED: Final = 3
STOPPED_PARTITION: Final = "docs/runbooks/stopped-partition.md"


class FlowWord(StrEnum):
    """One word for a flow; if several apply, the first in this order."""

    ENDED = "ended"
    STOPPED = "stopped"
    PAUSED = "paused"
    UNREACHABLE = "unreachable"
    FAILED = "failed"
    RECOVERING = "recovering"
    STARTING = "starting"
    DEGRADED = "degraded"
    IDLE = "idle"
    UNKNOWN = "unknown"
    BEHIND = "behind"
    CATCHING_UP = "catching up"
    RUNNING = "running"


class Urgency(StrEnum):
    """How urgent it is: ERROR does not copy something, and does not continue by itself."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class Does(StrEnum):
    """What an action does, for a page that has a button for it."""

    START_WORKER = "start worker"
    RESUME = "resume"
    RESTART = "restart"
    SET_OFFSET = "set offset"
    SCALE = "scale"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class Action(Wired):
    """One remedy of one thing; ``command`` may be empty."""

    about: str
    remedy: str
    command: str = ""
    does: Does = Does.CHECK

    def __str__(self) -> str:
        return f"{self.about}: {self.remedy}" + (f": {self.command}" if self.command else "")


@dataclass(frozen=True, slots=True)
class FlowVerdict(Wired):
    """A flow in words. ``also`` are sentences on what else is wrong, the worst first; ``lag`` is the part of a sentence
    that says how far behind it is; ``verified`` is on its last verification, empty if none has ended."""

    flow: FlowName
    state: FlowWord
    urgency: Urgency
    sentence: str
    also: tuple[str, ...]
    actions: tuple[Action, ...]
    failover: FailoverReadiness
    lag: str
    verified: str


@dataclass(frozen=True, slots=True)
class _Finding:
    state: FlowWord
    urgency: Urgency
    sentence: str
    actions: tuple[Action, ...] = ()


def _error(state: FlowWord, sentence: str, *actions: Action) -> _Finding:
    return _Finding(state, Urgency.ERROR, sentence, actions)


def _warning(state: FlowWord, sentence: str, *actions: Action) -> _Finding:
    return _Finding(state, Urgency.WARNING, sentence, actions)


def judge(facts: FlowFacts) -> FlowVerdict:
    """Return the verdict on a flow. The worst finding gives the state and the sentence."""
    found = _findings(facts)
    first = found[0] if found else _Finding(FlowWord.RUNNING, Urgency.OK, _all_well(facts))
    order = list(Urgency)
    return FlowVerdict(
        facts.flow,
        first.state,
        min((one.urgency for one in (found or [first])), key=order.index),
        f"{facts.flow} {first.sentence}",
        tuple(f"It {one.sentence}" for one in found[1:]),
        tuple(dict.fromkeys(action for one in found for action in one.actions)),
        readiness(facts),
        lag_text(facts.lag),
        "" if facts.verified is None else verified_text(facts.verified, facts.at_ms),
    )


def lag_text(lag: LagFacts) -> str:
    """Return how far behind a flow is: ``no lag in 6 partitions``, or how many records, and how old the oldest is."""
    lost = f", {counted(lag.lost, 'offset')} lost" if lag.lost else ""
    if lag.not_checked:
        lost += f", {counted(lag.not_checked, 'partition')} not checked"
    count = counted(lag.partitions, "partition")
    if lag.records < 0:
        since = f" {since_text(lag.known_ms)}" if lag.known_ms >= 0 else ""
        return f"lag unknown{since}{f' in {count}' if lag.partitions else ''}{lost}"
    if not lag.partitions:
        return f"lag unknown{lost}" if lost else "no partition to copy"
    if not lag.records:
        return f"no lag in {count}{lost}"
    size = "" if lag.bytes < 0 else f", about {bytes_text(lag.bytes)}"
    return f"{counted(lag.records, 'record')} behind in {count}{size}{_oldest(lag)}{lost}"


def _findings(facts: FlowFacts) -> list[_Finding]:
    found = [*_of_workers(facts), *_of_clusters(facts), *_of_tasks(facts), *_of_partitions(facts), *_of_others(facts)]
    order = list(FlowWord)
    is_explained = facts.lag.furthest in [one.source for one in facts.stopped] or any(
        order.index(one.state) < order.index(FlowWord.DEGRADED) for one in found
    )
    if facts.contact.source.answers is not False:
        found += _of_lag(facts, is_explained=is_explained)
    return sorted(found, key=lambda one: order.index(one.state))


def _of_workers(facts: FlowFacts) -> Iterator[_Finding]:
    if facts.stopped_by:
        # Whether a worker runs it is of no matter: it must not copy back what the other direction copies.
        yield _of_move(facts)
        return
    if facts.has_worker is False:
        last = "" if facts.heartbeat_ms < 0 else f", and its last heartbeat was {ago(facts.heartbeat_ms, facts)}"
        start = f"heliograph mirror {_file(facts)}"
        action = Action(f"the worker of {facts.flow}", "start it", start, Does.START_WORKER)
        yield _error(FlowWord.ENDED, f"copies nothing: no worker runs it{last}.", action)
    if facts.connector_state in (State.STOPPED, State.PAUSED):
        state = FlowWord(facts.connector_state.lower())
        remedy = "resume it"
        if state is FlowWord.STOPPED:
            remedy = "run heliograph failback if this is after a failover, otherwise resume it"
        action = Action(f"connector {facts.connector}", remedy, _connectors("resume", facts), Does.RESUME)
        yield _warning(state, f"copies nothing: connector {facts.connector} is {facts.connector_state}.", action)


def _of_move(facts: FlowFacts) -> _Finding:
    """Say that a failover or failback has stopped the flow, and how groups return."""
    source, target = facts.flow
    back = "failover" if facts.stopped_by == "failback" else "failback"
    return _warning(
        FlowWord.STOPPED,
        f"copies nothing: a {facts.stopped_by} to {target} stopped it {ago(facts.stopped_by_ms, facts)}. The live "
        f"direction is {target}->{source}.",
        Action(
            f"flow {facts.flow}",
            f"leave it stopped; to move groups back to {source}",
            f"heliograph {back} {_file(facts)} --to {shlex.quote(source)}",
        ),
    )


def _of_clusters(facts: FlowFacts) -> Iterator[_Finding]:
    sides = (("source", facts.flow.source, facts.contact.source), ("target", facts.flow.target, facts.contact.target))
    for side, alias, cluster in sides:
        if cluster.answers is False:
            effect = "copies nothing, and its lag is unknown" if side == "source" else "copies nothing"
            check = f"heliograph check {_file(facts)}"
            last = f" (last answer {ago(cluster.answered_ms, facts)})" if cluster.answered_ms >= 0 else ""
            sentence = f"{effect}: the {side} {alias} does not answer{last}{_because(cluster.reason)}."
            action = Action(f"cluster {alias}", "check its brokers and the network", check)
            yield _error(FlowWord.UNREACHABLE, sentence, action)


def _of_tasks(facts: FlowFacts) -> Iterator[_Finding]:
    name, count = facts.connector, counted(len(facts.tasks), "task")
    if facts.connector_state == State.FAILED:
        remedy = "remove the cause, then restart it"
        # Tasks run on without their connector.
        effect = "copies nothing" if not copies(facts) else "does not follow changes of its topics"
        action = Action(f"connector {name}", remedy, _connectors("restart", facts), Does.RESTART)
        sentence = f"{effect}: connector {name} failed{_because(facts.connector_reason)}."
        yield _error(FlowWord.FAILED, sentence, action)
    failed = [one for one in facts.tasks if one.state == State.FAILED]
    if failed:
        which = f"{'task' if len(failed) == 1 else 'tasks'} {named((one.task for one in failed), _NAMED)}"
        restart = _connectors("restart", facts, "--tasks --failed")
        action = Action(f"{which} of {name}", "remove the cause, then restart", restart, Does.RESTART)
        sentence = f"does not copy the partitions of {len(failed)} of {count}: {which} failed"
        yield _error(FlowWord.FAILED, f"{sentence}{_because(failed[0].reason)}.", action)
    if facts.connector_state == State.RUNNING and facts.lag.partitions and not facts.tasks and facts.has_worker:
        remedy = "wait for refresh.topics.interval.seconds, or restart it"
        action = Action(f"connector {name}", remedy, _connectors("restart", facts), Does.RESTART)
        yield _warning(FlowWord.STARTING, f"copies nothing: connector {name} has no task yet.", action)
    away = sum(one.state in (State.UNASSIGNED, State.RESTARTING) for one in facts.tasks)
    if facts.spark:
        sentence = "copies nothing at the moment: Spark does not run, and the worker starts it again"
        yield _warning(FlowWord.RECOVERING, f"{sentence}{_because(facts.spark)}.")
        return
    if again := [one for one in facts.tasks if one.state == RECOVERING]:
        sentence = f"starts {len(again)} of {count} again after an error{_because(again[0].reason)}."
        yield _warning(FlowWord.RECOVERING, sentence)
    if starting := sum(one.state == STARTING for one in facts.tasks):
        yield _warning(FlowWord.STARTING, f"starts {starting} of {count}, and reads where they continue.")
    if away and facts.has_worker is not False:
        yield _warning(
            FlowWord.RECOVERING,
            f"takes over {away} of {count}: a worker has ended or restarts them, and the group assigns them within "
            "scheduled.rebalance.max.delay.ms.",
        )


def _of_stopped(one: PartitionFacts, facts: FlowFacts) -> Action:
    about = f"partition {one.source}"
    if one.state == QUARANTINED:
        remedy = "remove the cause, or set errors.tolerance = all, then restart its tasks"
        return Action(about, remedy, _connectors("restart", facts, "--tasks"), Does.RESTART)
    return Action(about, one.advice or f"follow {STOPPED_PARTITION}", does=Does.SET_OFFSET)


def _of_others(facts: FlowFacts) -> Iterator[_Finding]:
    # A set, because a worker and the status topic may both report one.
    for connector in sorted({one.connector for one in facts.others}):
        failed = sorted((one for one in facts.others if one.connector == connector), key=lambda one: one.task)
        numbers = sorted({one.task for one in failed if one.task >= 0})
        which = f"connector {connector}"
        if failed[0].task >= 0:
            which = f"{'task' if len(numbers) == 1 else 'tasks'} {named(numbers, _NAMED)} of {connector}"
        restart = _connectors("restart", facts, "--tasks --failed" if numbers else "", connector)
        action = Action(which, "remove the cause, then restart it", restart, Does.RESTART)
        yield _error(FlowWord.DEGRADED, f"lacks {which}, which failed{_because(failed[0].reason)}.", action)


def _of_partitions(facts: FlowFacts) -> Iterator[_Finding]:
    if facts.stopped:
        first = facts.stopped[0]
        yield _error(
            FlowWord.DEGRADED,
            f"does not copy {counted(facts.stopped_count, 'partition')}: {first.source} is {first.state}"
            f"{_because(first.reason)}{_more(facts.stopped_count)}.",
            *(_of_stopped(one, facts) for one in facts.stopped),
        )
    if facts.waiting:
        first = facts.waiting[0]
        yield _warning(
            FlowWord.DEGRADED,
            f"waits with {counted(facts.waiting_count, 'partition')}, which will continue without help: "
            f"{first.source}{_because(first.reason)}{_more(facts.waiting_count)}.",
        )
    if facts.lost or facts.lag.lost:
        gone = counted(facts.lost + facts.lag.lost, "offset")
        look = f"heliograph lag {_file(facts)}" if facts.lag.lost else ""
        action = Action("lost offsets", f"find them as {STOPPED_PARTITION} says", look)
        yield _warning(FlowWord.RUNNING, f"has lost {gone} of {facts.flow.source}, deleted before the copy.", action)
    if facts.verified is not None and facts.verified.differences:
        look = f"heliograph verify {_file(facts)} --flow {shlex.quote(str(facts.flow))}"
        action = Action("differences", "look at them, and add --full once they are repaired", look)
        sentence = f"differs from its source, as its last verification found: {differences_text(facts.verified)}."
        yield _warning(FlowWord.RUNNING, sentence, action)
    if facts.skipped:
        skipped = counted(facts.skipped, "record")
        yield _warning(FlowWord.RUNNING, f"has left out {skipped} that {facts.flow.target} refuses.")


def _of_lag(facts: FlowFacts, *, is_explained: bool) -> Iterator[_Finding]:
    """Yield what the lag shows; ``is_explained``: another finding explains it, and has the action."""
    lag = facts.lag
    if lag.records < 0:
        if is_explained and not facts.unchecked:
            return
        why = _because(named(facts.unchecked, 1))
        known = f" (last known {ago(lag.known_ms, facts)})" if lag.known_ms >= 0 else ""
        yield _Finding(FlowWord.UNKNOWN, Urgency.UNKNOWN, f"has an unknown lag{known}{why}.")
        return
    if not lag.partitions and not facts.unchecked:
        check = f"heliograph check {_file(facts)}"
        action = Action(f"flow {facts.flow}", "check its topics and topics.exclude", check)
        yield _warning(FlowWord.IDLE, "copies nothing: no source topic is selected.", action)
    elif lag.ms >= BEHIND_MS:
        yield _behind(facts, is_explained=is_explained)
    if facts.unchecked:
        missing = counted(len(facts.unchecked), "answer")
        yield _Finding(
            FlowWord.UNKNOWN, Urgency.UNKNOWN, f"was not checked whole, {missing} missing: {named(facts.unchecked, 1)}."
        )


def _behind(facts: FlowFacts, *, is_explained: bool) -> _Finding:
    lag, growth, about = facts.lag, facts.lag.growth_per_s, f"flow {facts.flow}"
    behind = f"is {counted(lag.records, 'record')} behind{_oldest(lag)}"
    most = "" if lag.furthest is None else f" Most wait in {lag.furthest}: {lag.furthest_records:,}."
    if is_explained:
        return _warning(FlowWord.BEHIND, f"{behind}.{most}")
    why, actions = _quota(facts)
    if growth is not None and growth <= -_LEAST_TREND:
        soon, rate = age_text(round(lag.records / -growth * 1000)), f"{-growth:,.0f} records a second"
        return _warning(FlowWord.CATCHING_UP, f"{behind}, and catches up in about {soon} at {rate}{why}.", *actions)
    if growth is None or growth < _LEAST_TREND:
        look = Action(about, "look whether the lag grows", f"heliograph lag {_file(facts)} --watch")
        return _warning(FlowWord.BEHIND, f"{behind}{why}.{most}", *(actions or (look,)))
    tasks = len(facts.tasks)
    if not actions and tasks and tasks >= lag.partitions:
        why, remedy = ": each partition has a task of its own", "find what slows it, in docs/troubleshooting.md"
        actions = (Action(about, remedy, does=Does.SCALE),)
    elif not actions:
        slow = f"{counted(tasks, 'task')} cannot copy as fast as records arrive" if tasks else "records arrive faster"
        why = f": {slow}"
        actions = (Action(about, "raise tasks.max, or start another node", does=Does.SCALE),)
    return _error(FlowWord.BEHIND, f"{behind}, and falls back by {growth:,.0f} records a second{why}.{most}", *actions)


def _quota(facts: FlowFacts) -> tuple[str, tuple[Action, ...]]:
    """Return the end of a sentence on the quota that delays the flow most, and what to do; empty if none does much."""
    contact = facts.contact
    share, alias = max((contact.source.throttled, facts.flow.source), (contact.target.throttled, facts.flow.target))
    if share < _MUCH_THROTTLED:
        return "", ()
    action = Action(f"the quota of {alias}", "raise it for the user of the flow")
    return f": a quota of {alias} delays it {share:.0%} of the time", (action,)


def _all_well(facts: FlowFacts) -> str:
    lag = facts.lag
    if not lag.records:
        return f"runs: everything in {counted(lag.partitions, 'partition')} is copied."
    return f"runs: {counted(lag.records, 'record')} {'waits' if lag.records == 1 else 'wait'}{_oldest(lag)}."


def _oldest(lag: LagFacts) -> str:
    return f", the oldest {age_text(lag.ms)} old" if lag.ms >= 0 else ""


def _because(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _more(count: int) -> str:
    return f", and {counted(count - 1, 'other')}" if count > 1 else ""


def _connectors(verb: str, facts: FlowFacts, options: str = "", connector: str = "") -> str:
    rest = shlex.quote(facts.rest) if facts.rest else "URL"
    parts = ("heliograph connectors", verb, shlex.quote(connector or facts.connector), options, "--rest", rest)
    return " ".join(filter(None, parts))


def _file(facts: FlowFacts) -> str:
    return shlex.quote(facts.file or "mm2.properties")
