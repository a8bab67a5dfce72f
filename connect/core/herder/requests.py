"""Handles requests of users and other workers: checks them as Java does, and answers each exactly once."""

from __future__ import annotations

from collections.abc import Callable

from connect.core import config_topic, herder_api
from connect.core.errors import RetriableError
from connect.core.herder import events
from connect.core.herder import running_work as work
from connect.core.herder import task_configs as tasks
from connect.core.herder.membership import MAX_STRING_BYTES, fits
from connect.core.herder.state import HerderMode, HerderState, Step
from connect.core.model import ConnectorInfo, TargetState, TaskId

#: The limit of queued requests; REST has a lower limit.
_MOST_WAITING = 10_000

#: Operations that are rejected while a rebalance is due, because leader and assignment are about to change.
_CHECKED = (events.RestartConnector, events.RestartTask, events.Restart, events.CheckOffsets)


def accept(s: HerderState, request: events.Request) -> None:
    """Run a request at once if any worker may handle it at any time, else queue it."""
    s.open[request.id] = None
    if s.mode is HerderMode.GONE:
        s.reply(request.id, error=shutting_down())
    elif len(s.requests) >= _MOST_WAITING:
        s.reply(request.id, error=RetriableError("the worker has too many queued requests; try again later"))
    elif s.mode is not HerderMode.LOADING and _needs_no_leader(request.operation):
        run(s, request)
    else:
        s.requests[request.id] = request


def withdraw(s: HerderState, id_: int) -> None:
    if s.requests.pop(id_, None) is not None:
        s.reply(id_, error=RetriableError("Request timed out"))


def run_next(s: HerderState) -> None:
    _, request = s.requests.popitem(last=False)
    run(s, request)


def run(s: HerderState, request: events.Request) -> None:
    try:
        _run(s, request)
    except herder_api.RequestRefused as refusal:
        s.reply(request.id, error=refusal)


def shutting_down() -> RetriableError:
    return RetriableError("Worker is shutting down")


def _needs_no_leader(operation: events.HerderOperation) -> bool:
    if isinstance(operation, events.SetTargetState):
        return operation.state is not TargetState.STOPPED
    return isinstance(operation, events.SetLogger)


def _run(s: HerderState, request: events.Request) -> None:
    if isinstance(request.operation, _CHECKED) and s.rebalance_expected:
        raise herder_api.RebalanceExpected
    match request.operation:
        case events.PutConnector() as put:
            _put(s, request.id, put)
        case events.DeleteConnector(name):
            _require_leader(s, "Only the leader can delete connector configs.")
            _require(s, name, f"Connector {name} not found")
            _write(s, request.id, (config_topic.removal_records(name),))
        case events.SetTargetState(name, state):
            _set_target_state(s, request.id, name, state)
        case events.RestartConnector(name):
            _restart_connector(s, request.id, name)
        case events.RestartTask(task):
            _restart_task(s, request.id, task)
        case events.Restart() as restart:
            _restart(s, request.id, restart)
        case events.PutTaskConfigs() as put_tasks:
            _put_task_configs(s, request.id, put_tasks)
        case events.CheckOffsets(name):
            _check_offsets(s, request.id, name)
        case events.CheckFence(name):
            _require_fencing(s, name)
            s.reply(request.id)
        case events.PutTaskCount() as count:
            _put_task_count(s, request.id, count)
        case events.SetLogger(namespace, level):
            if not (config_topic.is_text(namespace) and config_topic.is_text(level)):
                raise herder_api.BadRequest("The logger's name or level cannot be encoded as UTF-8")
            _write_unordered(s, request.id, (config_topic.logger_record(namespace, level),))


def _put(s: HerderState, request: int, put: events.PutConnector) -> None:
    _require_leader(s, "Only the leader can set connector configs.")
    name = put.name
    if not fits(name):
        # Java accepts such a name, and from then on no leader can encode an assignment.
        raise herder_api.BadRequest(
            f"The connector's name is longer than {MAX_STRING_BYTES} bytes or cannot be encoded as UTF-8"
        )
    for key, value in put.config.items():
        if not (config_topic.is_text(key) and config_topic.is_text(value)):
            raise herder_api.BadRequest(f"The value of {key!r} in the connector's config cannot be encoded as UTF-8")
    exists = name in s.snapshot
    if exists and not put.allow_replace:
        raise herder_api.AlreadyExists(f"Connector {name} already exists")
    record = config_topic.connector_record(name, put.config)
    # The target state is first, so that a new connector does not start before it is known.
    step: Step = (
        (record,) if put.target_state is None else (config_topic.target_state_record(name, put.target_state), record)
    )
    info = ConnectorInfo(name, put.config, s.snapshot.task_ids(name), put.type)
    _write(s, request, (step,), lambda: herder_api.Put(not exists, info))


def _set_target_state(s: HerderState, request: int, name: str, state: TargetState) -> None:
    _require(s, name, f"Unknown connector {name}")
    target: Step = (config_topic.target_state_record(name, state),)
    if state is not TargetState.STOPPED:
        _write_unordered(s, request, target)
        return
    _require_leader(s, "Only the leader can transition connectors to the STOPPED state.")
    # In this order a failure in between leaves a running connector without tasks, which is valid; a stopped connector
    # with tasks is not.
    _write(s, request, (*tasks.steps(name, ()), target))


def _restart_connector(s: HerderState, request: int, name: str) -> None:
    _require(s, name, f"Unknown connector: {name}")
    if name not in s.running.connectors:
        _refer(s, name, "connector", "Only the leader can process restart requests.")
    work.restart_connector(s, name)
    if s.snapshot.target_state(name) is TargetState.STARTED:
        s.starting.setdefault(name, []).append(request)
    else:
        s.reply(request)


def _restart_task(s: HerderState, request: int, task: TaskId) -> None:
    _require(s, task.connector, f"Unknown connector: {task.connector}")
    if s.snapshot.task_config(task) is None:
        raise herder_api.NotFound(f"Unknown task: {task}")
    if task not in s.running.tasks:
        _refer(s, task, "task", "Cannot restart task since it is not assigned to this member")
    work.restart_task(s, task)
    s.reply(request)


def _restart(s: HerderState, request: int, restart: events.Restart) -> None:
    name = restart.request.connector
    _require(s, name, f"Unknown connector: {name}")
    _require_leader(s, "Only the leader can process restart requests.")
    planned = work.plan(s, restart.request)
    if planned is None:
        raise herder_api.NotFound(f"Status for connector {name} not found")
    _write(s, request, ((config_topic.restart_record(restart.request),),), lambda: planned.shown)


def _put_task_configs(s: HerderState, request: int, put: events.PutTaskConfigs) -> None:
    _require_leader(s, "Only the leader may write task configurations.")
    _require(s, put.name, f"Connector {put.name} not found")
    wrong = tasks.defect(put.configs)
    if wrong is not None:
        raise herder_api.BadRequest(f"The task configs of {put.name} cannot be stored: {wrong}")
    if put.configs and s.snapshot.target_state(put.name) is TargetState.STOPPED:
        raise herder_api.BadRequest(f"Cannot submit non-empty set of task configs for stopped connector {put.name}")
    _write(s, request, tasks.steps(put.name, put.configs))


def _check_offsets(s: HerderState, request: int, name: str) -> None:
    _require_leader(s, "Only the leader can process external offsets modification requests")

    def read(ok: bool) -> None:
        if not ok:
            s.must_read = True
            failed = RetriableError("Failed to read to end of config topic before modifying connector offsets")
            s.reply(request, error=failed)
        elif name not in s.snapshot:
            s.reply(request, error=herder_api.NotFound(f"Connector {name} not found"))
        elif s.snapshot.target_state(name) is not TargetState.STOPPED or s.snapshot.task_count(name):
            s.reply(
                request,
                error=herder_api.BadRequest(
                    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done "
                    f"for the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
                ),
            )
        else:
            s.reply(request)

    s.read_config(read)


def _put_task_count(s: HerderState, request: int, put: events.PutTaskCount) -> None:
    _require_fencing(s, put.name)
    if s.snapshot.task_generation(put.name) != put.generation:
        raise herder_api.RequestConflict(
            "Failed to complete zombie fencing because a new set of task configs was generated"
        )
    _write(s, request, ((config_topic.fencing_record(put.name, put.task_count),),))


def _require_fencing(s: HerderState, name: str) -> None:
    _require_leader(s, "Only the leader may perform zombie fencing.")
    _require(s, name, f"Connector {name} not found")


def _require(s: HerderState, connector: str, missing: str) -> None:
    if connector not in s.snapshot:
        raise herder_api.NotFound(missing)


def _require_leader(s: HerderState, refusal: str) -> None:
    if not s.is_leader:
        raise herder_api.NotLeader(refusal, s.leader_url)


def _refer(s: HerderState, item: str | TaskId, kind: str, not_leader: str) -> None:
    """Raise the error that refers to the worker that can restart ``item``."""
    if s.is_leader:
        url = s.urls.get(s.owners.get(item, ""))
        raise herder_api.NotAssigned(f"Cannot restart {kind} since it is not assigned to this member", url)
    raise herder_api.NotLeader(not_leader, s.leader_url)


def _write(s: HerderState, request: int, steps: tuple[Step, ...], value: Callable[[], object] = lambda: None) -> None:
    s.write_config(steps, lambda error: _written(s, request, error, value))


def _write_unordered(s: HerderState, request: int, step: Step) -> None:
    s.write_config_unordered(step, lambda error: _written(s, request, error, lambda: None))


def _written(s: HerderState, request: int, error: Exception | None, value: Callable[[], object]) -> None:
    if error is None:
        s.reply(request, value())
    else:
        s.reply(request, error=error)
