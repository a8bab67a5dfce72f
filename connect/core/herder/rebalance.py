"""The rounds of the group: joining, assigning as leader, taking up what a round gives, and what ends a membership.

The rules are those of Kafka's ``WorkerCoordinator`` and ``DistributedHerder``, but for one: whoever leaves, or hears
that the group has dropped it, stops its work at once, since the others may begin it without delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from connect.core.config_topic import NO_OFFSET, ConfigLog
from connect.core.herder import running_work as work
from connect.core.herder.assignor import Assignments, MemberAssignment, MemberState, eager_assign
from connect.core.herder.events import Assign, ClaimWriter, Join, Joined, LeaderElected, Leave, WriteStatus
from connect.core.herder.membership import (
    CONFIG_MISMATCH,
    EAGER,
    NO_ERROR,
    NOTHING,
    VERSIONS,
    Allocation,
    Assignment,
    MalformedMembership,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    fits,
)
from connect.core.herder.state import LEAST_PAUSE_MS, OFFERED, READ_ATTEMPTS, HerderMode, HerderState, MutableAllocation
from connect.core.herder.task_configs import look_for_stranded
from connect.core.model import State, TaskId

#: A round that a changed config asks for waits so long for more changes to come.
_PUT_OFF_MS: Final = 1_000
#: So many connectors are named in a line.
_NAMED: Final = 10


def begin(s: HerderState) -> None:
    """The config topic was read: what comes of it from now on is news, and the group is joined."""
    s.history = False
    if gone := sorted(s.known - set(s.log.connectors())):
        s.say(
            f"The config topic does not hold {len(gone)} connectors any more, which have ended with it: "
            f"{', '.join(gone[:_NAMED])}{', ...' if len(gone) > _NAMED else ''}; created again they go on at their "
            "stored offsets",
            "error",
        )
    s.known = set(s.log.connectors())
    for name in s.log.connectors():
        look_for_stranded(s, name)
    join(s)


def begin_anew(s: HerderState) -> None:
    """The config topic is another one than before: nothing that was read of it holds, nor what was made of that."""
    if s.mode not in (HerderMode.LOADING, HerderMode.GONE):
        s.say("The config topic is read from its beginning; out of the group until that is done", "warning")
        _go_away(s, "the config topic is read from its beginning", LEAST_PAUSE_MS)
    s.log = ConfigLog()
    s.history = True
    s.changed_at = NO_OFFSET
    s.restarts.clear()
    s.publishing.stranded_at_ms.clear()


def join(s: HerderState) -> None:
    """Join, or join again; with the eager protocol nothing runs meanwhile."""
    if s.protocol == EAGER:
        work.stop_all(s)
    s.mode = HerderMode.JOINING
    s.rejoin = False
    s.join_by_ms = s.scheduled_ms = s.away_until_ms = s.again_at_ms = None
    s.join_token += 1
    metadata = WorkerMetadata(
        s.worker_url,
        s.log.offset,
        s.held.freeze() if s.held is not None else None,
        s.settings.lease_ms,
    )
    offered = OFFERED[s.settings.protocol]
    s.emit(Join(s.join_token, tuple((name, encode_metadata(name, metadata)) for name in offered)))


def round_begun(s: HerderState) -> None:
    """The coordinator waits for us. It drops whoever has not joined when the rebalance timeout is over, whatever its
    heartbeats say; what tells us may be as old as our lease."""
    if s.mode not in (HerderMode.RESOLVING, HerderMode.MEMBER):
        return
    if not join_when_free(s) and s.join_by_ms is None:
        s.join_by_ms = s.now_ms + max(0, s.settings.rebalance_timeout_ms - s.settings.lease_ms)


def must_join(s: HerderState) -> bool:
    """Whether a round comes before anything else: others wait for it, its time has come, or it has been put off for
    long enough by requests that keep coming."""
    return (
        s.rejoin
        or (s.scheduled_ms is not None and s.scheduled_ms <= s.now_ms)
        or (s.rebalance_expected and s.changed_ms + _PUT_OFF_MS <= s.now_ms)
    )


def join_when_free(s: HerderState) -> bool:
    """Join again, now (True) or once what is under way has ended: a leader first ends its writes, then its place."""
    s.rejoin = s.mode is not HerderMode.MEMBER or s.busy
    if not s.rejoin:
        join(s)
    return not s.rejoin


# -- the leader's part -------------------------------------------------------------------------------------------------


def assign(s: HerderState, event: LeaderElected) -> None:
    """Answer for the group, after reading as far as any member has (``performAssignment``)."""
    if s.mode is not HerderMode.JOINING:
        return
    s.round += 1
    members = _readable(s, event.members)
    if not members:
        s.emit(Assign({}))
        return
    target = max(each.config_offset for each in members.values())
    if event.protocol == EAGER and any(each.allocation for each in members.values()):
        # (Java assigns here, and has two owners for a while.)
        s.say("The group has left a cooperative protocol: a round without work, so that everybody stops")
        _mismatch(s, event, members, target)
        return
    if s.log.offset >= target:
        _answer(s, event, members)
        return
    s.say(f"Reading the config topic as far as offset {target}, which another worker has read")
    of_round = s.round

    def read(_: bool) -> None:
        if s.mode is not HerderMode.JOINING or s.round != of_round:
            return
        if s.log.offset >= target:
            _answer(s, event, members)
        else:
            s.say("The config topic could not be read as far as another worker has: the group is asked again")
            _mismatch(s, event, members, target)

    s.read_config(read)


def _check_urls(s: HerderState, urls: Iterable[str | None]) -> None:
    """Warn once of another member with our own address. Only the leader knows all of them; others know the leader's."""
    if s.said_same_url or not s.worker_url.startswith("http") or s.worker_url not in urls:
        return
    s.said_same_url = True
    s.say(
        f"Another member of the group advertises {s.worker_url}, as this worker does: requests between the two reach "
        "the wrong one, and statuses do not tell them apart. Set rest.advertised.host.name, or listeners, on each "
        "worker to an address of its machine",
        "warning",
    )


def _readable(s: HerderState, members: Mapping[str, bytes]) -> dict[str, WorkerMetadata]:
    """Whoever cannot be understood gets nothing, and does not stop the others."""
    read: dict[str, WorkerMetadata] = {}
    for member, data in members.items():
        try:
            read[member] = decode_metadata(data)
        except MalformedMembership as error:
            s.say(f"Member {member} gets no work, since what it says of itself cannot be read: {error}", "error")
    return read


def _answer(s: HerderState, event: LeaderElected, members: Mapping[str, WorkerMetadata]) -> None:
    outcome = _decide(s, event.protocol, members)
    s.urls = {member: each.url for member, each in members.items()}
    owners: dict[str | TaskId, str] = {}
    for member, each in outcome.members.items():
        owners.update(dict.fromkeys(each.total.connectors, member))
        owners.update(dict.fromkeys(each.total.tasks, member))
    s.owners = owners
    _check_urls(s, [each.url for member, each in members.items() if member != event.leader])
    s.emit(
        Assign(
            {
                member: _encoded(s, event, NO_ERROR, s.log.offset, each, outcome.delay_ms)
                for member, each in sorted(outcome.members.items())
            }
        )
    )


def _decide(s: HerderState, protocol: str, members: Mapping[str, WorkerMetadata]) -> Assignments:
    names = tuple(name for name in s.log.connectors() if fits(name))
    for name in s.log.connectors():
        if not fits(name):
            # (Java fails in each round, on one worker after the other.)
            s.say(
                f"Connector {name[:40]!r}... gets no worker, since its name of {len(name)} characters is too long for "
                "Connect's group protocol; delete it, and make it again under a shorter name",
                "error",
            )
    configured = Allocation(names, tuple(task for name in names for task in s.log.task_ids(name)))
    if protocol == EAGER:
        return eager_assign(configured, members)
    return s.assignor.assign(
        configured,
        {member: MemberState(each.allocation or NOTHING, each.lease_ms) for member, each in members.items()},
        last_completed_generation=s.completed_round,
        generation=s.round,
        now_ms=s.now_ms,
    )


def _mismatch(s: HerderState, event: LeaderElected, members: Mapping[str, WorkerMetadata], config_offset: int) -> None:
    nothing = MemberAssignment()
    s.emit(
        Assign({member: _encoded(s, event, CONFIG_MISMATCH, config_offset, nothing, 0) for member in sorted(members)})
    )


def _encoded(
    s: HerderState,
    event: LeaderElected,
    error: int,
    config_offset: int,
    each: MemberAssignment,
    delay_ms: int,
) -> bytes:
    url = s.worker_url
    assignment = Assignment(
        error, event.leader, url, config_offset, each.assigned, each.revoked, delay_ms, VERSIONS[event.protocol]
    )
    return encode_assignment(event.protocol, assignment)


# -- what a round gives ------------------------------------------------------------------------------------------------


def joined(s: HerderState, event: Joined) -> None:
    """Take the assignment, stop what it takes away, and go on to the rest of it (``onJoinComplete``)."""
    if s.mode is not HerderMode.JOINING or event.token != s.join_token:
        return
    try:
        assignment = decode_assignment(event.assignment)
    except MalformedMembership as error:
        s.say(f"The leader's assignment cannot be read; joining again: {error}", "error")
        _join_again(s)
        return
    s.protocol, s.member, s.generation, s.assignment = event.protocol, event.member, event.generation, assignment
    s.completed_round = s.round if s.is_leader else -1
    s.scheduled_ms = s.now_ms + assignment.delay_ms if assignment.delay_ms > 0 else None
    _take(s, assignment)
    s.say(
        f"Joined in generation {event.generation} by protocol {event.protocol}"
        f"{' as leader' if s.is_leader else ''}: {_counts(s.held or MutableAllocation())} here, "
        f"{len(assignment.revoked.connectors)} connectors and {len(assignment.revoked.tasks)} tasks given up"
    )
    if not s.is_leader:
        _check_urls(s, [assignment.leader_url])
    s.mode = HerderMode.RESOLVING
    if s.is_leader:
        _clean_statuses(s)
        s.claim = True
    resolve(s)


def _take(s: HerderState, assignment: Assignment) -> None:
    if s.held is None:
        s.held = MutableAllocation()
    if s.protocol == EAGER:
        assigned = assignment.assigned
        kept = MutableAllocation(set(assigned.connectors), set(assigned.tasks))
        # Something runs only where the group has just left a cooperative protocol.
        work.stop(s, s.running.connectors - kept.connectors, s.running.tasks - kept.tasks)
        s.held = kept
    else:
        work.revoke(s, assignment.revoked)
        s.held.add(assignment.assigned)


def resolve(s: HerderState) -> None:
    """Catch up with the config that the assignment was made from, where need be (``handleRebalanceCompleted``)."""
    assignment = s.assignment
    if assignment is None:
        return
    failed = assignment.error != NO_ERROR
    if s.log.offset >= assignment.config_offset and not (failed and s.is_leader):
        _settle(s, failed=failed)
        return

    def read(ok: bool) -> None:
        if s.mode is not HerderMode.RESOLVING:
            return
        if ok:
            s.read_attempts = READ_ATTEMPTS
            _settle(s, failed=failed)
        else:
            back_off(s)

    s.read_config(read)


def _settle(s: HerderState, *, failed: bool) -> None:
    assignment = s.assignment
    if assignment is None:
        join(s)
        return
    if failed or s.rebalance_expected or s.log.offset < assignment.config_offset:
        _join_again(s)
        return
    work.start(s)
    s.mode = HerderMode.MEMBER
    s.ready = True
    s.vain_rounds = 0
    if s.protocol != EAGER and assignment.revoked:
        # What we have given up is handed out in the round that this begins.
        join(s)


def _join_again(s: HerderState) -> None:
    """After a round that came to nothing: at once, but for those that follow such a one themselves."""
    s.vain_rounds += 1
    if s.vain_rounds == 1:
        join(s)
    else:
        s.mode = HerderMode.RESOLVING
        s.again_at_ms = s.now_ms + LEAST_PAUSE_MS


def _clean_statuses(s: HerderState) -> None:
    """Statuses of what is configured no more are taken away by the leader, after all have stopped it."""
    for name in sorted(s.statuses.connectors()):
        if name not in s.log and s.statuses.status(name) is not None:
            s.emit(WriteStatus(name, State.DESTROYED))
        tasks = s.log.task_count(name)
        for number in sorted(s.statuses.tasks(name)):
            if number >= tasks:
                s.emit(WriteStatus(TaskId(name, number), State.DESTROYED))


def _counts(held: MutableAllocation) -> str:
    return f"{len(held.connectors)} connectors and {len(held.tasks)} tasks"


# -- what ends a membership --------------------------------------------------------------------------------------------


def lost(s: HerderState, reason: str) -> None:
    """The group has dropped us, or may have: nothing of it is ours any more (Java goes on working here)."""
    if s.mode in (HerderMode.LOADING, HerderMode.AWAY, HerderMode.GONE):
        return
    s.say(f"No longer a member of the group: {reason}; stopping {_counts(s.running)}", "warning")
    work.stop_all(s)
    s.assignment = s.member = None
    s.completed_round = -1
    if s.mode is HerderMode.JOINING:
        # The join that is under way must not claim what has just been stopped; and where its answer is here already,
        # it is of a membership that is over, or under no lease.
        join(s)
    else:
        join_when_free(s)


def back_off(s: HerderState) -> None:
    """Leave, since the config topic cannot be read, and try again after a pause (``DistributedHerder.backoff``)."""
    if s.protocol == EAGER:
        pause_ms = s.settings.worker_unsync_backoff_ms
    else:
        pause_ms = max(s.settings.max_delay_ms // 10 // s.read_attempts, LEAST_PAUSE_MS)
        s.read_attempts = s.read_attempts - 1 or READ_ATTEMPTS
    s.say(f"The config topic cannot be read; out of the group for {pause_ms} ms", "warning")
    _go_away(s, "taking too long to read the log", pause_ms)


def _go_away(s: HerderState, reason: str, pause_ms: int) -> None:
    """Be no member until the config topic has been read, which is tried after a pause."""
    if s.mode is not HerderMode.AWAY:
        work.stop_all(s)
        s.emit(Leave(reason))
    s.mode = HerderMode.AWAY
    s.assignment = s.member = None
    s.completed_round = -1
    s.rejoin = False
    s.join_by_ms = s.scheduled_ms = s.again_at_ms = None
    s.away_until_ms = s.now_ms + pause_ms


def come_back(s: HerderState) -> None:
    """The pause is over: join, if the config topic can be read now."""
    s.away_until_ms = None

    def read(ok: bool) -> None:
        if s.mode is not HerderMode.AWAY:
            return
        if ok:
            s.must_read = False
            s.read_attempts = READ_ATTEMPTS
            if s.history:
                begin(s)
            else:
                join(s)
        else:
            back_off(s)

    s.read_config(read)


def claim_writer(s: HerderState) -> None:
    """Make the config topic's writer ours before we write as leader."""
    if s.claim and s.is_leader:
        s.emit(ClaimWriter())
    s.claim = False
