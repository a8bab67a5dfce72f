"""Decides what a worker of a Connect group does, as a state machine without clock, random numbers or I/O.

It takes one event at a time and returns effects (``connect.core.herder.events``), by the rules of Kafka's
``DistributedHerder`` and ``WorkerCoordinator``. The driver performs the effects of an event in order before the next
event. This module handles session keys (KIP-507) and records of the config topic.

====================  ==================================================================================================
``state``             the state of the herder
``rebalance``         rebalances: joining, assigning as leader, resolving, backing off
``running_work``      starting, stopping and restarting connectors and tasks
``task_configs``      publishing task configs to the config topic
``requests``          REST requests
====================  ==================================================================================================

    LOADING --Ready--> JOINING --Joined--> RESOLVING --config read--> MEMBER --rebalance, change, delay--> JOINING
                         ^                     |
                         +---- AWAY <----------+ config topic cannot be read
"""

from __future__ import annotations

from connect.core import config_topic, herder_api
from connect.core.herder import events, requests
from connect.core.herder import rebalance as group
from connect.core.herder import running_work as work
from connect.core.herder import task_configs as tasks
from connect.core.herder.membership import EAGER, SESSIONED
from connect.core.herder.state import HerderMode, HerderState, pause_ms
from connect.core.herder_api import Forbidden, RequestRefused, Signature
from connect.core.model import impact


def apply_config_record(s: HerderState, record: events.ConfigRecord) -> None:
    """Fold a record, and apply the changes that need no rebalance."""
    changes = s.snapshot.apply(record.offset, record.key, record.value)
    for change in changes:
        if isinstance(change, config_topic.SkippedConfigRecord):
            s.say(f"Config topic: {change.why}", "warning")
        elif not s.history:
            _apply_change(s, change)


def _apply_change(s: HerderState, change: config_topic.ConfigChange) -> None:
    match change:
        case config_topic.ConnectorChanged(name):
            if name not in s.known:
                s.known.add(name)
                s.change()
            if name in s.running.connectors:
                work.restart_connector(s, name)
        case config_topic.ConnectorRemoved(name):
            if name in s.known:
                s.known.remove(name)
                s.change()
        case config_topic.TasksChanged(name):
            s.change()
            if s.protocol != EAGER:
                work.reconfigure(s, name)
            tasks.committed(s, name)
        case config_topic.TargetChanged(name):
            work.change_target(s, name)
            tasks.look_for_unwanted_tasks(s, name)
        case config_topic.RestartAsked(request):
            waiting = s.restarts.get(request.connector)
            if waiting is None or impact(request) > impact(waiting):
                s.restarts[request.connector] = request
        case config_topic.LoggerChanged(namespace, level):
            s.emit(events.SetLevel(namespace, level))


def uses_session_keys(s: HerderState) -> bool:
    """Return whether requests between workers of the group are currently signed."""
    return s.protocol == SESSIONED


def is_session_key_due(s: HerderState) -> bool:
    settings = s.config
    return (
        s.is_leader
        and uses_session_keys(s)
        and s.key_again_ms <= s.now_ms
        and herder_api.must_be_replaced(
            s.snapshot.session_key, settings.key_algorithm, settings.key_size_bits, settings.key_ttl_ms, s.now_ms
        )
    )


def write_session_key(s: HerderState, key: bytes) -> None:
    """Write the new key if this worker is still the leader and the key is still due."""
    s.making_key = False
    if not is_session_key_due(s):
        return
    s.say("Distributing a new session key", "debug")

    def written(error: Exception | None) -> None:
        if error is None:
            s.key_failures = 0
            return
        wait_ms = pause_ms(s.key_failures)
        s.key_failures += 1
        s.key_again_ms = s.now_ms + wait_ms
        s.must_read = True
        s.say(
            f"Failed to write the new session key; reading the config topic and retrying in {wait_ms} ms: {error}",
            "warning",
        )

    s.write_config(
        [(config_topic.session_key_record(herder_api.SessionKey(key, s.config.key_algorithm, s.now_ms)),)], written
    )


def session_key_deadline_ms(s: HerderState) -> int | None:
    """Return when the leader must generate the next key; None if it need not."""
    if not s.is_leader or not uses_session_keys(s):
        return None
    if s.key_again_ms > s.now_ms:
        return s.key_again_ms
    key = s.snapshot.session_key
    return key.created_ms + s.config.key_ttl_ms if key is not None and s.config.key_ttl_ms else None


class StartFailed(RequestRefused):
    """A connector did not start after a restart request."""


class Herder(HerderState):
    """The herder of a worker: its state, and the functions of this package that change it."""

    def step(self, event: events.Event, now_ms: int) -> list[events.Effect]:
        """Handle an event at ``now_ms`` (milliseconds since 1970) and return the effects to perform."""
        self.now_ms = now_ms
        _take_in(self, event)
        _go_on(self)
        effects, self.out = self.out, []
        return effects

    def next_deadline_ms(self) -> int | None:
        """Return the time by which a :class:`Tick` is needed if no other event comes; None: no deadline."""
        if self.mode is HerderMode.AWAY:
            return None if self.busy else self.away_until_ms
        deadlines = [at_ms for at_ms in (self.join_by_ms, self.again_at_ms) if at_ms is not None]
        if self.mode is HerderMode.MEMBER and not self.busy:
            deadlines += self.publishing.retry_at_ms.values()
            deadlines += self.auto_restart_at_ms.values()
            deadlines += self.publishing.remove_tasks_at_ms.values() if self.is_leader else ()
            deadlines += [at_ms for at_ms in (self.scheduled_ms, session_key_deadline_ms(self)) if at_ms is not None]
        return min(deadlines, default=None)

    def signer(self) -> herder_api.Sign | None:
        """Return the function that signs requests to other workers; None while the group has no session key."""
        key, algorithm = self.snapshot.session_key, self.config.signature_algorithm
        if key is None or not uses_session_keys(self):
            return None
        return lambda body: herder_api.signed(key, algorithm, body)

    def check_signature(self, signature: Signature) -> None:
        """Verify the signature of an internal request, if the protocol is ``sessioned``. Raises BadRequest, NotReady or
        Forbidden as :func:`connect.core.herder_api.check`."""
        if uses_session_keys(self):
            herder_api.check(signature, self.snapshot.session_key, self.config.verification_algorithms)

    def check_forwarded(self, signature: Signature) -> None:
        """Verify the signature of a user's request that another worker forwards. Raises BadRequest, NotReady or
        Forbidden as :func:`connect.core.herder_api.check`; Forbidden also while the group has no session keys."""
        if not uses_session_keys(self):
            raise Forbidden("This group has no session key, so no worker can sign for its users.")
        self.check_signature(signature)


def _take_in(s: HerderState, event: events.Event) -> None:
    match event:
        case events.ConfigRecord():
            apply_config_record(s, event)
        case events.ConfigLogReset():
            group.reset_log(s)
        case events.ConfigRead(token, ok):
            s.ended(token, ok)
        case events.ConfigWritten(token, error):
            s.ended(token, error)
        case events.Request():
            requests.accept(s, event)
        case events.RequestWithdrawn(id_):
            requests.withdraw(s, id_)
        case events.SessionKeyMade(key):
            write_session_key(s, key)
        case events.Ready():
            if s.mode is HerderMode.LOADING:
                group.begin(s)
        case events.LeaderElected():
            group.assign(s, event)
        case events.Joined():
            group.joined(s, event)
        case events.RebalanceBegun():
            group.round_begun(s)
        case events.MembershipLost(reason):
            group.lost(s, reason)
        case events.LeaseLost():
            group.lost(s, "no heartbeat was answered for the length of the worker's lease")
        case events.Stopping():
            _stop(s)
        case events.TaskConfigsWanted(connector):
            work.answer_start(s, connector)
            tasks.want(s, connector)
        case events.TaskConfigsComputed(token, connector, configs, error):
            tasks.computed(s, token, connector, configs if error is None else error)
        case events.TaskConfigsSent(token, connector, error):
            tasks.sent(s, token, connector, error)
        case events.ReconfigurationRefused(refused):
            work.refused(s, refused)
        case events.ScheduleAutoRestart(failed, wait_ms):
            work.schedule_restart(s, failed, wait_ms)
        case events.ConnectorFailed(connector):
            work.answer_start(s, connector, StartFailed(f"Failed to start connector: {connector}"))


def _go_on(s: HerderState) -> None:
    """Begin all due operations that are not blocked, in Java's order (``DistributedHerder.tick``)."""
    if s.join_by_ms is not None and s.join_by_ms <= s.now_ms:
        s.join_by_ms = None
        group.lost(s, "it did not join a rebalance in time")
    if s.mode is HerderMode.RESOLVING and s.again_at_ms is not None and s.again_at_ms <= s.now_ms:
        group.join(s)
    if s.mode is HerderMode.AWAY and not s.busy and s.away_until_ms is not None and s.away_until_ms <= s.now_ms:
        group.come_back(s)
    while s.mode is HerderMode.MEMBER and not s.busy and _begin_one(s):
        pass


def _begin_one(s: HerderState) -> bool:
    """Begin one operation; return whether another may follow."""
    if group.must_join(s):
        group.join(s)
        return False
    if s.must_read:
        _read_again(s)
        return False
    group.claim_writer(s)
    if is_session_key_due(s):
        s.making_key = True  # nothing else begins until it is written
        s.emit(events.MakeSessionKey(herder_api.key_bytes(s.config.key_algorithm, s.config.key_size_bits)))
    elif s.requests:
        requests.run_next(s)
    elif s.restarts:
        work.execute(s, s.restarts.pop(next(iter(s.restarts))))
    elif due := work.due_restarts(s):
        work.restart_failed(s, due)
    else:
        tasks.advance(s)
        if s.rebalance_expected and not s.busy:
            # Last, so that one rebalance covers all changes so far.
            group.join(s)
        return False
    return True


def _read_again(s: HerderState) -> None:
    s.must_read = False

    def read(ok: bool) -> None:
        if not ok and s.mode is HerderMode.MEMBER:
            s.must_read = True
            group.back_off(s)

    s.read_config(read)


def _stop(s: HerderState) -> None:
    if s.mode is HerderMode.GONE:
        return
    work.stop_all(s)
    s.mode = HerderMode.GONE
    for request in list(s.open):
        s.reply(request, error=requests.shutting_down())
    s.requests.clear()
    s.waiting.clear()
    s.emit(events.Leave("the worker is stopping"))
