"""The herder: one worker's mind in a Connect group, as a state machine without clock, chance or I/O.

It is fed events one at a time and answers each with what is to be done (``connect.core.events``); Kafka's
``DistributedHerder`` and ``WorkerCoordinator`` say by which rules. Whoever drives it performs the effects of an event,
in order, before it feeds in the next one.

=========================  =============================================================================================
``herder_state``           what it knows
``herder_group``           rounds: joining, assigning as leader, resolving, back-off
``herder_changes``         what a record of the config topic means
``herder_work``            what runs here: started, stopped, restarted
``herder_tasks``           task configs on their way to the config topic
``herder_requests``        what REST asks for
``herder_keys``            session keys
=========================  =============================================================================================

    LOADING --Ready--> JOINING --Joined--> RESOLVING --config read--> MEMBER --round, change, delay over--> JOINING
                         ^                     |
                         +---- AWAY <----------+ config topic cannot be read
"""

from __future__ import annotations

from connect.core import herder_changes as changes
from connect.core import herder_group as group
from connect.core import herder_keys as keys
from connect.core import herder_requests as requests
from connect.core import herder_tasks as tasks
from connect.core import herder_work as work
from connect.core import signing
from connect.core.configlog import ConfigLog
from connect.core.events import (
    AutoRestart,
    ConfigBegunAnew,
    ConfigRead,
    ConfigRecord,
    ConfigWritten,
    ConnectorFailed,
    Effect,
    Event,
    Joined,
    LeaderElected,
    LeaseLost,
    Leave,
    MembershipLost,
    Ready,
    RebalanceBegun,
    ReconfigurationRefused,
    Request,
    SessionKeyMade,
    Stopping,
    TaskConfigsComputed,
    TaskConfigsSent,
    TaskConfigsWanted,
    Tick,
)
from connect.core.herder_state import HerderSettings, HerderState, Mode, Statuses, Work
from connect.core.herding import RequestRefused, Signature
from connect.core.membership import Allocation

__all__ = ["Herder", "HerderSettings", "Mode", "Statuses"]


class StartFailed(RequestRefused):
    """A connector or a task that was to be restarted did not start."""


class Herder:
    """A worker of a group.

    Args:
        settings: The worker's settings.
        worker_url: Our REST address, as other members are told of it.
        statuses: The folded status topic; read, never changed.
    """

    def __init__(self, settings: HerderSettings, worker_url: str, statuses: Statuses) -> None:
        self._state = HerderState(settings, worker_url, statuses)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take in what has happened at ``now_ms`` (a clock's milliseconds since 1970), and say what is to be done."""
        s = self._state
        s.now_ms = now_ms
        _take_in(s, event)
        _go_on(s)
        effects, s.out = s.out, []
        return effects

    def next_deadline_ms(self) -> int | None:
        """When a :class:`Tick` is wanted at the latest, where nothing happens until then."""
        s = self._state
        if s.mode is Mode.AWAY:
            return None if s.busy else s.away_until_ms
        deadlines = [at_ms for at_ms in (s.join_by_ms, s.again_at_ms) if at_ms is not None]
        if s.mode is Mode.MEMBER and not s.busy:
            deadlines += s.publishing.retry_at_ms.values()
            deadlines += s.auto_restart_at_ms.values()
            deadlines += s.publishing.stranded_at_ms.values() if s.is_leader else ()
            deadlines += [at_ms for at_ms in (s.scheduled_ms, keys.deadline_ms(s)) if at_ms is not None]
        return min(deadlines, default=None)

    # views

    @property
    def snapshot(self) -> ConfigLog:
        """The config topic as it has been read."""
        return self._state.log

    @property
    def assignment(self) -> Allocation:
        """All that is ours by the last round, be it started or not."""
        return (self._state.held or Work()).freeze()

    @property
    def running(self) -> Allocation:
        """What was started here and not stopped since."""
        return self._state.running.freeze()

    @property
    def mode(self) -> Mode:
        return self._state.mode

    @property
    def is_stopping(self) -> bool:
        """Whether the worker has been told to leave its group for good."""
        return self._state.mode is Mode.GONE

    @property
    def is_ready(self) -> bool:
        """Whether a round of the group has ever been seen through."""
        return self._state.ready

    @property
    def is_leader(self) -> bool:
        return self._state.is_leader

    @property
    def leader_url(self) -> str | None:
        """The leader's REST address; None where nobody is known to lead."""
        return self._state.leader_url

    @property
    def member(self) -> str | None:
        return self._state.member

    @property
    def generation(self) -> int:
        """The generation of the last round, -1 before the first."""
        return self._state.generation

    @property
    def protocol(self) -> str:
        """The group's protocol by its name on the wire; before the first round the one we prefer."""
        return self._state.protocol

    @property
    def rebalance_expected(self) -> bool:
        """Whether a changed config is about to make us join again, so that what is known of others is no more sure."""
        return self._state.mode is Mode.MEMBER and self._state.rebalance_expected

    def check_signature(self, signature: Signature) -> None:
        """Check an internal request; below the protocol ``sessioned`` there is nothing to check.

        Raises:
            BadRequest, NotReady, Forbidden: as :func:`connect.core.signing.check`.
        """
        if keys.are_used(self._state):
            signing.check(signature, self._state.log.session_key, self._state.settings.verification_algorithms)


def _take_in(s: HerderState, event: Event) -> None:
    match event:
        case ConfigRecord():
            changes.apply(s, event)
        case ConfigBegunAnew():
            group.begin_anew(s)
        case ConfigRead(token, ok):
            s.ended(token, ok)
        case ConfigWritten(token, error):
            s.ended(token, error)
        case Request():
            requests.accept(s, event)
        case SessionKeyMade(key):
            keys.made(s, key)
        case Tick():
            pass
        case Ready() | LeaderElected() | Joined() | RebalanceBegun() | MembershipLost() | LeaseLost() | Stopping():
            _take_in_of_group(s, event)
        case (
            TaskConfigsWanted()
            | TaskConfigsComputed()
            | TaskConfigsSent()
            | ConnectorFailed()
            | AutoRestart()
            | ReconfigurationRefused()
        ):
            _take_in_of_work(s, event)


def _take_in_of_group(
    s: HerderState,
    event: Ready | LeaderElected | Joined | RebalanceBegun | MembershipLost | LeaseLost | Stopping,
) -> None:
    match event:
        case Ready():
            if s.mode is Mode.LOADING:
                group.begin(s)
        case LeaderElected():
            group.assign(s, event)
        case Joined():
            group.joined(s, event)
        case RebalanceBegun():
            group.round_begun(s)
        case MembershipLost(reason):
            group.lost(s, reason)
        case LeaseLost():
            group.lost(s, "no heartbeat was answered for as long as our lease lasts")
        case Stopping():
            _stop(s)


def _take_in_of_work(
    s: HerderState,
    event: TaskConfigsWanted
    | TaskConfigsComputed
    | TaskConfigsSent
    | ConnectorFailed
    | AutoRestart
    | ReconfigurationRefused,
) -> None:
    match event:
        case TaskConfigsWanted(connector):
            work.answer_start(s, connector)
            tasks.want(s, connector)
        case TaskConfigsComputed(token, connector, configs, error):
            tasks.computed(s, token, connector, configs if error is None else error)
        case TaskConfigsSent(token, connector, error):
            tasks.sent(s, token, connector, error)
        case ReconfigurationRefused(refused):
            work.refused(s, refused)
        case AutoRestart(failed, wait_ms):
            work.schedule_restart(s, failed, wait_ms)
        case ConnectorFailed(connector):
            work.answer_start(s, connector, StartFailed(f"Failed to start connector: {connector}"))


def _go_on(s: HerderState) -> None:
    """Begin whatever is due and not held back, in Java's order (``DistributedHerder.tick``)."""
    if s.join_by_ms is not None and s.join_by_ms <= s.now_ms:
        s.join_by_ms = None
        group.lost(s, "the round that has begun was not joined in time")
    if s.mode is Mode.RESOLVING and s.again_at_ms is not None and s.again_at_ms <= s.now_ms:
        group.join(s)
    if s.mode is Mode.AWAY and not s.busy and s.away_until_ms is not None and s.away_until_ms <= s.now_ms:
        group.come_back(s)
    while s.mode is Mode.MEMBER and not s.busy and _begin_one(s):
        pass


def _begin_one(s: HerderState) -> bool:
    """Whether there may be more to begin."""
    if group.must_join(s):
        group.join(s)
        return False
    if s.must_read:
        _read_again(s)
        return False
    group.claim_writer(s)
    if keys.is_due(s):
        keys.ask(s)
    elif s.requests:
        requests.run_next(s)
    elif s.restarts:
        work.execute(s, s.restarts.pop(next(iter(s.restarts))))
    elif due := work.due_restarts(s):
        work.restart_failed(s, due)
    else:
        tasks.advance(s)
        if s.rebalance_expected and not s.busy:
            # Last, so that one round is for all that was asked for meanwhile.
            group.join(s)
        return False
    return True


def _read_again(s: HerderState) -> None:
    s.must_read = False

    def read(ok: bool) -> None:
        if not ok and s.mode is Mode.MEMBER:
            s.must_read = True
            group.back_off(s)

    s.read_config(read)


def _stop(s: HerderState) -> None:
    """Stop all work, refuse whoever waits, and leave."""
    if s.mode is Mode.GONE:
        return
    work.stop_all(s)
    s.mode = Mode.GONE
    for request in list(s.open):
        s.reply(request, error=requests.shutting_down())
    s.requests.clear()
    s.waiting.clear()
    s.emit(Leave("the worker is stopping"))
