"""Handles rebalances of the group: joining, assigning as leader, applying assignments, and leaving.

The rules are those of Kafka's ``WorkerCoordinator`` and ``DistributedHerder``, with one exception: a worker that leaves
or was removed from the group stops its work at once, because other workers may start it without delay.
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
from connect.core.herder.task_configs import look_for_unwanted_tasks
from connect.core.model import State, TaskId

#: A rebalance after a config change waits at most this time for further changes.
_PUT_OFF_MS: Final = 1_000
#: The maximum number of connectors that a log line names.
_NAMED: Final = 10


def begin(s: HerderState) -> None:
    """Join the group after the first read of the config topic; later records are not history."""
    s.history = False
    if gone := sorted(s.known - set(s.snapshot.connectors())):
        s.say(
            f"{len(gone)} connectors are no longer in the config topic and were stopped: "
            f"{', '.join(gone[:_NAMED])}{', ...' if len(gone) > _NAMED else ''}; if they are created again, they "
            "resume at their stored offsets",
            "error",
        )
    s.known = set(s.snapshot.connectors())
    for name in s.snapshot.connectors():
        look_for_unwanted_tasks(s, name)
    join(s)


def reset_log(s: HerderState) -> None:
    """Reset what was read of the config topic, which was recreated or has lost records, and leave the group."""
    if s.mode not in (HerderMode.LOADING, HerderMode.GONE):
        s.say("Reading the config topic from its beginning; out of the group until that is done", "warning")
        _go_away(s, "reading the config topic from its beginning", LEAST_PAUSE_MS)
    s.snapshot = ConfigLog()
    s.history = True
    s.changed_at = NO_OFFSET
    s.restarts.clear()
    s.publishing.remove_tasks_at_ms.clear()


def join(s: HerderState) -> None:
    """Join or rejoin; with the eager protocol all work is stopped first."""
    if s.protocol == EAGER:
        work.stop_all(s)
    s.mode = HerderMode.JOINING
    s.rejoin = False
    s.join_by_ms = s.scheduled_ms = s.away_until_ms = s.again_at_ms = None
    s.join_token += 1
    metadata = WorkerMetadata(
        s.worker_url, s.snapshot.offset, s.held.freeze() if s.held is not None else None, s.config.lease_ms
    )
    offered = OFFERED[s.config.connect_protocol]
    s.emit(Join(s.join_token, tuple((name, encode_metadata(name, metadata)) for name in offered)))


def round_begun(s: HerderState) -> None:
    """Join a rebalance that the coordinator has begun, or set the deadline to join it. The coordinator removes each
    member that has not joined within the rebalance timeout, even if it sends heartbeats. The response that reported the
    rebalance may be as old as the lease."""
    if s.mode not in (HerderMode.RESOLVING, HerderMode.MEMBER):
        return
    if not join_when_free(s) and s.join_by_ms is None:
        s.join_by_ms = s.now_ms + max(0, s.config.rebalance_timeout_ms - s.config.lease_ms)


def must_join(s: HerderState) -> bool:
    """Return whether a rebalance is due before anything else: other members wait for it, its time has come, or
    requests have delayed it long enough."""
    return (
        s.rejoin
        or (s.scheduled_ms is not None and s.scheduled_ms <= s.now_ms)
        or (s.rebalance_expected and s.changed_ms + _PUT_OFF_MS <= s.now_ms)
    )


def join_when_free(s: HerderState) -> bool:
    """Rejoin now (True), or after the operations in progress: a leader first completes its writes."""
    s.rejoin = s.mode is not HerderMode.MEMBER or s.busy
    if not s.rejoin:
        join(s)
    return not s.rejoin


# -- the leader's part -------------------------------------------------------------------------------------------------


def assign(s: HerderState, event: LeaderElected) -> None:
    """Assign work to all members, after reading the config topic as far as any member has (``performAssignment``)."""
    if s.mode is not HerderMode.JOINING:
        return
    s.round += 1
    members = _readable(s, event.members)
    if not members:
        s.emit(Assign({}))
        return
    target = max(each.config_offset for each in members.values())
    if event.protocol == EAGER and any(each.allocation for each in members.values()):
        # (Java assigns here, so that work has two owners for a while.)
        s.say("The group has left a cooperative protocol: this rebalance assigns no work, so that all members stop")
        _mismatch(s, event, members, target)
        return
    if s.snapshot.offset >= target:
        _answer(s, event, members)
        return
    s.say(f"Reading the config topic to offset {target}, which another worker has read")
    of_round = s.round

    def read(_: bool) -> None:
        if s.mode is not HerderMode.JOINING or s.round != of_round:
            return
        if s.snapshot.offset >= target:
            _answer(s, event, members)
        else:
            s.say("Failed to read the config topic as far as another worker has; all members rejoin")
            _mismatch(s, event, members, target)

    s.read_config(read)


def _check_urls(s: HerderState, urls: Iterable[str | None]) -> None:
    """Warn once if another member has the same URL. The leader knows all URLs, the others only the leader's."""
    if s.said_same_url or not s.worker_url.startswith("http") or s.worker_url not in urls:
        return
    s.said_same_url = True
    s.say(
        f"Another member of the group advertises {s.worker_url}, as this worker does: requests between the two reach "
        "the wrong worker, and statuses do not distinguish them. On each worker set rest.advertised.host.name or "
        "listeners to an address of its machine",
        "warning",
    )


def _readable(s: HerderState, members: Mapping[str, bytes]) -> dict[str, WorkerMetadata]:
    """Decode the metadata of all members. A member whose metadata cannot be read gets no work."""
    read: dict[str, WorkerMetadata] = {}
    for member, data in members.items():
        try:
            read[member] = decode_metadata(data)
        except MalformedMembership as error:
            s.say(f"Member {member} gets no work: its metadata cannot be read: {error}", "error")
    return read


def _answer(s: HerderState, event: LeaderElected, members: Mapping[str, WorkerMetadata]) -> None:
    outcome = _decide(s, event.protocol, members)
    s.urls = {member: each.url for member, each in members.items()}
    s.java_urls = tuple(each.url for _, each in sorted(members.items()) if each.lease_ms is None)
    owners: dict[str | TaskId, str] = {}
    for member, each in outcome.members.items():
        owners.update(dict.fromkeys(each.total.connectors, member))
        owners.update(dict.fromkeys(each.total.tasks, member))
    s.owners = owners
    _check_urls(s, [each.url for member, each in members.items() if member != event.leader])
    s.emit(
        Assign(
            {
                member: _encoded(s, event, NO_ERROR, s.snapshot.offset, each, outcome.delay_ms)
                for member, each in sorted(outcome.members.items())
            }
        )
    )


def _decide(s: HerderState, protocol: str, members: Mapping[str, WorkerMetadata]) -> Assignments:
    names = tuple(name for name in s.snapshot.connectors() if fits(name))
    for name in s.snapshot.connectors():
        if not fits(name):
            # (Java fails in each rebalance, on one worker after the other.)
            s.say(
                f"Connector {name[:40]!r}... is not assigned: its name of {len(name)} characters is too long for "
                "Connect's group protocol. Delete it, and create it again with a shorter name",
                "error",
            )
    configured = Allocation(names, tuple(task for name in names for task in s.snapshot.task_ids(name)))
    states = {member: MemberState(each.allocation or NOTHING, each.lease_ms) for member, each in members.items()}
    has_java = any(each.lease_ms is None for each in states.values())
    foreign = {name for name in names if not s.can_run(s.snapshot.connector_config(name) or {})} if has_java else set()
    if protocol == EAGER:
        return eager_assign(configured, states, foreign)
    return s.assignor.assign(
        configured,
        states,
        last_completed_generation=s.completed_round,
        generation=s.round,
        now_ms=s.now_ms,
        foreign=foreign,
    )


def _mismatch(s: HerderState, event: LeaderElected, members: Mapping[str, WorkerMetadata], config_offset: int) -> None:
    nothing = MemberAssignment()
    s.emit(
        Assign({member: _encoded(s, event, CONFIG_MISMATCH, config_offset, nothing, 0) for member in sorted(members)})
    )


def _encoded(
    s: HerderState, event: LeaderElected, error: int, config_offset: int, each: MemberAssignment, delay_ms: int
) -> bytes:
    url = s.worker_url
    assignment = Assignment(
        error, event.leader, url, config_offset, each.assigned, each.revoked, delay_ms, VERSIONS[event.protocol]
    )
    return encode_assignment(event.protocol, assignment)


# -- assignments -------------------------------------------------------------------------------------------------------


def joined(s: HerderState, event: Joined) -> None:
    """Apply the assignment: stop revoked work, then resolve the rest (``onJoinComplete``)."""
    if s.mode is not HerderMode.JOINING or event.token != s.join_token:
        return
    try:
        assignment = decode_assignment(event.assignment)
    except MalformedMembership as error:
        s.say(f"Failed to read the leader's assignment; rejoining: {error}", "error")
        _join_again(s)
        return
    s.protocol, s.member, s.generation, s.last_assignment = event.protocol, event.member, event.generation, assignment
    s.completed_round = s.round if s.is_leader else -1
    s.scheduled_ms = s.now_ms + assignment.delay_ms if assignment.delay_ms > 0 else None
    _take(s, assignment)
    s.say(
        f"Joined generation {event.generation} with protocol {event.protocol}"
        f"{' as leader' if s.is_leader else ''}: {_counts(s.held or MutableAllocation())} here, "
        f"{len(assignment.revoked.connectors)} connectors and {len(assignment.revoked.tasks)} tasks revoked",
        "debug",
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
        # Work can run here only if the group has just left a cooperative protocol.
        work.stop(s, s.running.connectors - kept.connectors, s.running.tasks - kept.tasks)
        s.held = kept
    else:
        work.revoke(s, assignment.revoked)
        s.held.add(assignment.assigned)


def resolve(s: HerderState) -> None:
    """Read the config topic to the offset of the assignment if necessary (``handleRebalanceCompleted``)."""
    assignment = s.last_assignment
    if assignment is None:
        return
    failed = assignment.error != NO_ERROR
    if s.snapshot.offset >= assignment.config_offset and not (failed and s.is_leader):
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
    assignment = s.last_assignment
    if assignment is None:
        join(s)
        return
    if failed or s.has_changed or s.snapshot.offset < assignment.config_offset:
        _join_again(s)
        return
    work.start(s)
    s.mode = HerderMode.MEMBER
    s.is_ready = True
    s.failed_rounds = 0
    if s.protocol != EAGER and assignment.revoked:
        # The next rebalance assigns the revoked work.
        join(s)


def _join_again(s: HerderState) -> None:
    """Rejoin after a rebalance without effect: at once, or after a pause if the previous one had no effect either."""
    s.failed_rounds += 1
    if s.failed_rounds == 1:
        join(s)
    else:
        s.mode = HerderMode.RESOLVING
        s.again_at_ms = s.now_ms + LEAST_PAUSE_MS


def _clean_statuses(s: HerderState) -> None:
    """Delete the statuses of work that is no longer configured, as leader, after all members have stopped it."""
    for name in sorted(s.statuses.connectors()):
        if name not in s.snapshot and s.statuses.status(name) is not None:
            s.emit(WriteStatus(name, State.DESTROYED))
        tasks = s.snapshot.task_count(name)
        for number in sorted(s.statuses.tasks(name)):
            if number >= tasks:
                s.emit(WriteStatus(TaskId(name, number), State.DESTROYED))


def _counts(held: MutableAllocation) -> str:
    return f"{len(held.connectors)} connectors and {len(held.tasks)} tasks"


# -- loss of membership ------------------------------------------------------------------------------------------------


def lost(s: HerderState, reason: str) -> None:
    """Stop all work because the group has removed this worker, or may have (Java continues its work here)."""
    if s.mode in (HerderMode.LOADING, HerderMode.AWAY, HerderMode.GONE):
        return
    s.say(f"No longer a member of the group: {reason}; stopping {_counts(s.running)}", "warning")
    work.stop_all(s)
    s.last_assignment = s.member = None
    s.completed_round = -1
    if s.mode is HerderMode.JOINING:
        # The join in progress must not claim the work that has just been stopped; a response that has already arrived
        # is for an earlier membership, or has no lease.
        join(s)
    else:
        join_when_free(s)


def back_off(s: HerderState) -> None:
    """Leave because the config topic cannot be read, and retry after a pause (``DistributedHerder.backoff``)."""
    if s.protocol == EAGER:
        pause_ms = s.config.unsync_backoff_ms
    else:
        pause_ms = max(s.config.max_delay_ms // 10 // s.read_attempts, LEAST_PAUSE_MS)
        s.read_attempts = s.read_attempts - 1 or READ_ATTEMPTS
    s.say(f"Failed to read the config topic; out of the group for {pause_ms} ms", "warning")
    _go_away(s, "taking too long to read the log", pause_ms)


def _go_away(s: HerderState, reason: str, pause_ms: int) -> None:
    """Leave the group until the config topic has been read, which is tried after a pause."""
    if s.mode is not HerderMode.AWAY:
        work.stop_all(s)
        s.emit(Leave(reason))
    s.mode = HerderMode.AWAY
    s.last_assignment = s.member = None
    s.completed_round = -1
    s.rejoin = False
    s.join_by_ms = s.scheduled_ms = s.again_at_ms = None
    s.away_until_ms = s.now_ms + pause_ms


def come_back(s: HerderState) -> None:
    """Join after the pause if the config topic can be read now."""
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
    """Claim the config topic's writer before writing as leader."""
    if s.claim and s.is_leader:
        s.emit(ClaimWriter())
    s.claim = False
