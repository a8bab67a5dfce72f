"""What a record of the config topic means for a worker that is at work (Kafka ``ConfigUpdateListener``)."""

from __future__ import annotations

from connect.core import herder_tasks as tasks
from connect.core import herder_work as work
from connect.core.config_changes import (
    Change,
    ConnectorChanged,
    ConnectorRemoved,
    LoggerChanged,
    RestartAsked,
    TargetChanged,
    TasksChanged,
    Unreadable,
)
from connect.core.events import ConfigRecord, SetLevel
from connect.core.herder_state import HerderState
from connect.core.membership import EAGER
from connect.core.model import RestartRequest
from connect.core.restart import impact


def apply(s: HerderState, record: ConfigRecord) -> None:
    """Fold a record, and do at once what can be done without a round of the group."""
    changes = s.log.apply(record.offset, record.key, record.value)
    for change in changes:
        if isinstance(change, Unreadable):
            s.say(f"Config topic: {change.why}", "warning")
        elif not s.history:
            _react(s, change)


def _react(s: HerderState, change: Change) -> None:
    match change:
        case ConnectorChanged(name):
            if name not in s.known:
                s.known.add(name)
                s.change()
            if name in s.running.connectors:
                work.restart_connector(s, name)
        case ConnectorRemoved(name):
            if name in s.known:
                s.known.remove(name)
                s.change()
        case TasksChanged(name):
            s.change()
            if s.protocol != EAGER:
                work.reconfigure(s, name)
            tasks.committed(s, name)
        case TargetChanged(name):
            work.change_target(s, name)
            tasks.look_for_stranded(s, name)
        case RestartAsked(request):
            _ask_restart(s, request)
        case LoggerChanged(namespace, level):
            s.emit(SetLevel(namespace, level))


def _ask_restart(s: HerderState, request: RestartRequest) -> None:
    waiting = s.restarts.get(request.connector)
    if waiting is None or impact(request) > impact(waiting):
        s.restarts[request.connector] = request
