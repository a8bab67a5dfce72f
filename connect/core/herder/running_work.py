"""Starts, stops and restarts the connectors and tasks of this worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from connect.core import model
from connect.core.config.connector_settings import AutoRestartRule
from connect.core.herder import events
from connect.core.herder.membership import Allocation
from connect.core.herder.state import HerderMode, HerderState, MutableAllocation
from connect.core.herder_api import RequestConflict


def start(s: HerderState) -> None:
    """Start assigned work that is not running yet (Kafka ``DistributedHerder.startWork``)."""
    held = s.held or MutableAllocation()
    for name in sorted(held.connectors - s.running.connectors):
        if name in s.snapshot:
            _start_connector(s, name)
    for task in sorted(held.tasks - s.running.tasks):
        # A task that a smaller set of task configs has removed stays assigned until the leader revokes it.
        if s.snapshot.task_config(task) is not None:
            _start_task(s, task)


def stop(s: HerderState, connectors: Iterable[str], tasks: Iterable[model.TaskId]) -> None:
    """Stop the given work if it runs here; it stays assigned until a rebalance changes that."""
    stopped = Allocation(
        tuple(sorted(s.running.connectors.intersection(connectors))), tuple(sorted(s.running.tasks.intersection(tasks)))
    )
    if not stopped:
        return
    s.running.remove(stopped)
    both: tuple[str | model.TaskId, ...] = (*stopped.connectors, *stopped.tasks)
    for work in both:
        s.auto_restart_at_ms.pop(work, None)
    s.emit(events.StopWork(stopped.connectors, stopped.tasks))
    for name in stopped.connectors:
        s.publishing.forget(name)
        answer_start(s, name, RequestConflict(f"Connector {name} was stopped here before it had started"))


def stop_all(s: HerderState) -> None:
    """Stop all work and drop the assignment."""
    taken = s.running.freeze()
    stop(s, taken.connectors, taken.tasks)
    if s.held is not None:
        s.held.clear()
    _forget_topics(s, taken)


def revoke(s: HerderState, revoked: Allocation) -> None:
    stop(s, revoked.connectors, revoked.tasks)
    if s.held is not None:
        s.held.remove(revoked)
    _forget_topics(s, revoked)


def restart_connector(s: HerderState, name: str) -> None:
    stop(s, (name,), ())
    _start_connector(s, name)


def restart_task(s: HerderState, task: model.TaskId) -> None:
    stop(s, (), (task,))
    _start_task(s, task)


def reconfigure(s: HerderState, connector: str) -> None:
    """Handle new task configs of a connector: offer them to running tasks that still exist, and stop the others."""
    running = [task for task in sorted(s.running.tasks) if task.connector == connector]
    # Under exactly-once each set of task configs needs its own fencing.
    offered = [
        task for task in running if not s.config.exactly_once_enabled and s.snapshot.task_config(task) is not None
    ]
    stop(s, (), [task for task in running if task not in offered])
    if offered:
        s.emit(events.ReconfigureTasks(tuple(offered)))


def refused(s: HerderState, tasks: Iterable[model.TaskId]) -> None:
    """Stop tasks that did not accept their new configs; they start with them after the rebalance."""
    stop(s, (), tasks)
    if s.mode is HerderMode.MEMBER:
        start(s)


def change_target(s: HerderState, connector: str) -> None:
    if connector in s.running.connectors or any(task.connector == connector for task in s.running.tasks):
        # A connector that this starts requests its task configs, as after any other start.
        s.emit(events.ChangeTarget(connector, s.snapshot.target_state(connector)))


def plan(s: HerderState, request: model.RestartRequest) -> model.RestartPlan | None:
    """Return the plan for a restart request by the current statuses; None if the connector has no status."""
    status = s.statuses.status(request.connector)
    if status is None:
        return None
    current = model.ConnectorStateInfo(request.connector, status, s.statuses.tasks(request.connector), "unknown")
    return model.plan_restart(request, current)


def execute(s: HerderState, request: model.RestartRequest) -> None:
    """Restart the parts of the request's plan that run here (``doRestartConnectorAndTasks``)."""
    planned = plan(s, request)
    if planned is None:
        s.say(f"Restart of {request.connector} was skipped: it has no status")
        return
    name = request.connector
    # Work that the config topic has removed meanwhile is about to be revoked.
    restarts = planned.restarts_connector and name in s.running.connectors and name in s.snapshot
    tasks = [task for task in planned.tasks if task in s.running.tasks and s.snapshot.task_config(task) is not None]
    if not restarts and not tasks:
        return
    s.say(f"Executing {planned}")
    _restart(s, (name,) if restarts else (), tasks)


def schedule_restart(s: HerderState, work: str | model.TaskId, wait_ms: int | None) -> None:
    """Schedule the restart of failed work after a pause, unless it is stopped before."""
    s.auto_restart_at_ms.pop(work, None)
    if wait_ms is not None and (work in s.running.connectors or work in s.running.tasks):
        s.auto_restart_at_ms[work] = s.now_ms + wait_ms


def due_restarts(s: HerderState) -> list[str | model.TaskId]:
    return [work for work, at_ms in s.auto_restart_at_ms.items() if at_ms <= s.now_ms]


def restart_failed(s: HerderState, due: Sequence[str | model.TaskId]) -> None:
    """Restart failed work that still exists and whose connector still has automatic restarts enabled."""
    for work in due:
        del s.auto_restart_at_ms[work]
    wanted = [
        work for work in due if AutoRestartRule.applies(s.snapshot.connector_config(model.connector_of(work)) or {})
    ]
    for work in due:
        if work not in wanted:
            s.say(f"{work} was not restarted automatically: its connector's config no longer enables it")
    names = [work for work in wanted if isinstance(work, str)]
    tasks = [work for work in wanted if isinstance(work, model.TaskId) and s.snapshot.task_config(work) is not None]
    _restart(s, names, tasks)


def _restart(s: HerderState, names: Sequence[str], tasks: Sequence[model.TaskId]) -> None:
    stop(s, names, tasks)
    both: tuple[str | model.TaskId, ...] = (*names, *tasks)
    for work in both:
        s.emit(events.WriteStatus(work, model.State.RESTARTING))
    for name in names:
        _start_connector(s, name)
    for task in tasks:
        _start_task(s, task)


def answer_start(s: HerderState, connector: str, error: Exception | None = None) -> None:
    """Answer the requests that wait until a connector has started here."""
    for request in s.starting.pop(connector, ()):
        s.reply(request, error=error)


def _start_connector(s: HerderState, name: str) -> None:
    s.running.connectors.add(name)
    s.emit(events.StartConnector(name, s.snapshot.target_state(name)))


def _start_task(s: HerderState, task: model.TaskId) -> None:
    s.running.tasks.add(task)
    s.emit(events.StartTask(task, s.snapshot.target_state(task.connector)))


def _forget_topics(s: HerderState, stopped: Allocation) -> None:
    """Forget the topics of deleted connectors, after their work has stopped, which could report topics again."""
    names = {*stopped.connectors, *(task.connector for task in stopped.tasks)}
    for name in sorted(names):
        if name not in s.snapshot:
            s.emit(events.ForgetTopics(name))
