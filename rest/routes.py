"""Defines the endpoints: worker, connectors and their lifecycle, offsets, mirror reports, requests between workers,
plugins, loggers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from connect.core import herder_api
from connect.core.config.config_def import trim
from connect.core.jackson import json_text
from connect.core.model import RestartRequest, TargetState, TaskId
from rest import bodies, request_handling
from rest.bodies import WorkerStatus, json_response
from rest.errors import JSON, RestError
from rest.request_handling import Call, Calling, Flag, Name, TaskNumber, json_answered, json_asked
from rest.rest_config import Metrics, RestSettings

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

worker_router = APIRouter(tags=["worker"])
_ANSWERS = [Depends(json_answered)]
_TAKES_AND_ANSWERS = [*_ANSWERS, Depends(json_asked)]


@worker_router.get("/", response_model=herder_api.WorkerInfo, dependencies=_ANSWERS)
async def server_info(call: Calling) -> Response:
    """Return the worker's version, and the id of its Kafka cluster."""
    return json_response(call.herder.worker_info())


@worker_router.get("/health", response_model=WorkerStatus, dependencies=_ANSWERS)
async def health(call: Calling) -> Response:
    """Return whether the worker has started (503 until then) and responds (500 if it does not)."""
    status, body = await health_of(call.herder, call.request.app.state.limits.health_s)
    return json_response(body, status)


@worker_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return all metrics of this process in the Prometheus text format."""
    return await metrics_response(request.app.state.metrics)


async def metrics_response(metrics: Metrics) -> Response:
    return Response(await metrics(), headers={"content-type": _METRICS_TYPE})


async def health_of(herder: herder_api.HerderApi, timeout_s: float) -> tuple[int, WorkerStatus]:
    """Return HTTP status and body of a worker's health."""
    try:
        async with asyncio.timeout(timeout_s) as timeout:
            await herder.health()
    except TimeoutError:
        if not timeout.expired():
            raise
        details = f" {stage}" if (stage := herder.stage()) else ""
        if not herder.is_ready():
            return 503, {"status": "starting", "message": f"Worker is still starting up.{details}"}
        text = "Worker was unable to handle this request and may be unable to handle other requests."
        return 500, {"status": "unhealthy", "message": f"{text}{details}"}
    except herder_api.Unhealthy as error:
        return 500, {"status": "unhealthy", "message": str(error)}
    text = "Worker has completed startup and is ready to handle requests."
    return 200, {"status": "healthy", "message": text}


log = logging.getLogger(__name__)

connectors_router = APIRouter(prefix="/connectors", tags=["connectors"], dependencies=_TAKES_AND_ANSWERS)


@connectors_router.get("", response_model=list[str] | dict[str, bodies.Expanded])
async def list_connectors(
    call: Calling,
    expand: Annotated[list[str] | None, Query(description="status, info, or both: details of each connector")] = None,
) -> Response:
    """List the names of all connectors, or with `expand` the requested details of each."""
    names = await call.within_time(call.herder.connectors())
    if expand is None:
        return json_response(list(names))
    return json_response(_expanded(call, names, expand))


def _expanded(call: Call, names: Sequence[str], expand: Sequence[str]) -> dict[str, dict[str, Any]]:
    if unknown := set(expand) - {"status", "info"}:
        log.info("ignored unknown expansion types %s", ", ".join(sorted(unknown)))
    shown: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            each: dict[str, Any] = {}
            if "info" in expand:
                each["info"] = call.shown_info(call.herder.known_connector(name))
            if "status" in expand:
                each["status"] = bodies.connector_state(call.herder.connector_status(name))
            shown[name] = each
        except herder_api.NotFound:
            log.debug("connector %s was deleted meanwhile, or has no status yet", name)
    return shown


@connectors_router.post(
    "", status_code=201, response_model=bodies.ConnectorInfo, openapi_extra=bodies.schema(bodies.CREATE)
)
async def create_connector(call: Calling) -> Response:
    """Create a connector."""
    request = await call.json(bodies.CREATE)
    name = trim(request.name or "")
    if request.config is None:  # on which Java fails
        raise RestError(500, "The body has no 'config'.")
    config = _named(name, request.config)
    call.note_config(name, config)
    state = None if request.initial_state is None else request.initial_state.target_state()
    operation = call.herder.put_connector(name, config, state, allow_replace=False)
    return await call.here_or_elsewhere(operation, lambda put: _put(call, put))


@connectors_router.get("/{connector}", response_model=bodies.ConnectorInfo)
async def get_connector(call: Calling, connector: Name) -> Response:
    """Return a connector's config and tasks."""
    return json_response(call.shown_info(await call.within_time(call.herder.connector_info(connector))))


@connectors_router.delete("/{connector}", status_code=204)
async def delete_connector(call: Calling, connector: Name) -> Response:
    """Delete a connector, its tasks and its config."""
    return await call.here_or_elsewhere(call.herder.delete_connector(connector), lambda _: Response(status_code=204))


@connectors_router.get("/{connector}/config", response_model=dict[str, str])
async def get_config(call: Calling, connector: Name) -> Response:
    """Return a connector's config as written, with references to secrets unresolved."""
    return json_response(dict(call.shown(connector, await call.within_time(call.herder.connector_config(connector)))))


@connectors_router.put(
    "/{connector}/config", response_model=bodies.ConnectorInfo, openapi_extra=bodies.schema(bodies.CONFIG)
)
async def put_config(call: Calling, connector: Name) -> Response:
    """Create a connector (201), or replace its config (200)."""
    config = _named(connector, await call.json(bodies.CONFIG))
    call.note_config(connector, config)
    operation = call.herder.put_connector(connector, config, None, allow_replace=True)
    return await call.here_or_elsewhere(operation, lambda put: _put(call, put))


@connectors_router.patch(
    "/{connector}/config", response_model=bodies.ConnectorInfo, openapi_extra=bodies.schema(bodies.CONFIG)
)
async def patch_config(call: Calling, connector: Name) -> Response:
    """Change individual keys of a config (KIP-477); null removes a key."""
    patch = await call.json(bodies.CONFIG)
    _named(connector, patch)  # MirrorSource stores its positions under this name
    call.note_config(connector, patch, patches=True)
    operation = call.herder.patch_connector(connector, patch)
    return await call.here_or_elsewhere(operation, lambda put: json_response(put.info))


@connectors_router.get("/{connector}/status", response_model=bodies.ConnectorState)
async def get_status(call: Calling, connector: Name) -> Response:
    """Return the states of a connector and its tasks, as far as this worker has read them."""
    return json_response(bodies.connector_state(call.herder.connector_status(connector)))


@connectors_router.get("/{connector}/tasks", response_model=list[bodies.TaskInfo])
async def get_tasks(call: Calling, connector: Name) -> Response:
    """Return a connector's tasks and their configs."""
    infos = await call.within_time(call.herder.task_infos(connector))
    return json_response([replace(each, config=call.shown(connector, each.config)) for each in infos])


@connectors_router.get("/{connector}/tasks/{task}/status", response_model=bodies.TaskState)
async def get_task_status(call: Calling, connector: Name, task: TaskNumber) -> Response:
    """Return the state of one task."""
    return json_response(bodies.task_state(task, call.herder.task_status(TaskId(connector, task))))


def _named(name: str, config: dict[str, str | None]) -> dict[str, str | None]:
    """Return the config with the connector's name; add it if it is missing."""
    included = config.get("name")
    if included is None:
        return {**config, "name": name}
    if included != name:
        raise herder_api.BadRequest(
            f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})"
        )
    return config


def _put(call: Call, put: herder_api.Put) -> Response:
    if put.created:
        return json_response(put.info, 201, {"location": call.location_of(put.info.name)})
    return json_response(put.info)


lifecycle_router = APIRouter(prefix="/connectors", tags=["life"], dependencies=_TAKES_AND_ANSWERS)


@lifecycle_router.put("/{connector}/pause", status_code=202)
async def pause(call: Calling, connector: Name) -> Response:
    """Pause a connector and its tasks; answers before they are paused."""
    return await _target_state(call, connector, TargetState.PAUSED, 202)


@lifecycle_router.put("/{connector}/resume", status_code=202)
async def resume(call: Calling, connector: Name) -> Response:
    """Resume a paused or stopped connector; answers before it is resumed."""
    return await _target_state(call, connector, TargetState.STARTED, 202)


@lifecycle_router.put("/{connector}/stop", status_code=204)
async def stop(call: Calling, connector: Name) -> Response:
    """Stop a connector and remove its tasks until it is resumed (KIP-875)."""
    return await _target_state(call, connector, TargetState.STOPPED, 204)


async def _target_state(call: Call, connector: str, state: TargetState, status: int) -> Response:
    operation = call.herder.set_target_state(connector, state)
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=status))


@lifecycle_router.post("/{connector}/restart", response_model=bodies.ConnectorState, status_code=202)
async def restart(call: Calling, connector: Name, includeTasks: Flag = False, onlyFailed: Flag = False) -> Response:
    """Restart a connector's instance (204), or the parts that the parameters select (202, KIP-745)."""
    call.note(detail=f"includeTasks={includeTasks}, onlyFailed={onlyFailed}".lower())
    if not includeTasks and not onlyFailed:
        alone = call.herder.restart_connector(connector)
        return await call.here_or_elsewhere(alone, lambda _: Response(status_code=204))
    planned = call.herder.restart(RestartRequest(connector, only_failed=onlyFailed, include_tasks=includeTasks))
    return await call.here_or_elsewhere(planned, lambda info: json_response(bodies.connector_state(info), 202))


@lifecycle_router.post("/{connector}/tasks/{task}/restart", status_code=204)
async def restart_task(call: Calling, connector: Name, task: TaskNumber) -> Response:
    """Restart one task."""
    operation = call.herder.restart_task(TaskId(connector, task))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


@lifecycle_router.get("/{connector}/topics", response_model=dict[str, bodies.ActiveTopics])
async def get_topics(call: Calling, connector: Name) -> Response:
    """Return the topics that a connector has used since the last reset."""
    _check_tracking(call)
    topics = await call.within_time(call.herder.active_topics(connector))
    return json_response({connector: {"topics": list(topics)}})


@lifecycle_router.put("/{connector}/topics/reset", status_code=202)
async def reset_topics(call: Calling, connector: Name) -> Response:
    """Reset the topics that a connector has used."""
    if not _check_tracking(call).topic_tracking_reset:
        raise herder_api.Forbidden("Topic tracking reset is disabled.")
    await call.within_time(call.herder.reset_active_topics(connector))
    return Response(status_code=202)


def _check_tracking(call: Call) -> RestSettings:
    settings: RestSettings = call.request.app.state.settings
    if not settings.topic_tracking:
        raise herder_api.Forbidden("Topic tracking is disabled.")
    return settings


#: Offsets of one request that the audit names.
_MOST_NOTED: Final = 20

offsets_router = APIRouter(prefix="/connectors/{connector}/offsets", tags=["offsets"], dependencies=_TAKES_AND_ANSWERS)


@offsets_router.get("", response_model=bodies.Offsets)
async def get_offsets(call: Calling, connector: Name) -> Response:
    """Return a connector's source offsets."""

    def shown(offsets: Sequence[herder_api.SourceOffset]) -> Response:
        # Numbers of any size, as Java writes them, because a client may send them back to alter offsets.
        return Response(json_text({"offsets": [asdict(each) for each in offsets]}), media_type=JSON)

    return await call.here_or_elsewhere(call.herder.connector_offsets(connector), shown)


@offsets_router.patch("", response_model=bodies.Message, openapi_extra=bodies.schema(bodies.OFFSETS))
async def alter_offsets(call: Calling, connector: Name) -> Response:
    """Set offsets of a stopped connector; a null offset removes one."""
    request = await call.json(bodies.OFFSETS)
    if not request.offsets:
        raise herder_api.BadRequest("Partitions / offsets need to be provided for an alter offsets request")
    offsets = request.source_offsets()
    call.note(detail=json_text([asdict(each) for each in offsets[:_MOST_NOTED]]))
    operation = call.herder.alter_offsets(connector, offsets)
    return await call.here_or_elsewhere(operation, lambda text: json_response({"message": text}))


@offsets_router.delete("", response_model=bodies.Message)
async def reset_offsets(call: Calling, connector: Name) -> Response:
    """Reset all offsets of a stopped connector: it starts again from the beginning."""
    operation = call.herder.alter_offsets(connector, None)
    return await call.here_or_elsewhere(operation, lambda text: json_response({"message": text}))


reports_router = APIRouter(prefix="/connectors/{connector}", tags=["beyond Kafka Connect"], dependencies=_ANSWERS)


@reports_router.get("/lag", response_model=dict[str, Any])
async def get_lag(call: Calling, connector: Name, top: str = "10") -> Response:
    """Return the lag of a MirrorSource and its partitions with the highest lag, read from both clusters now."""
    return await _reported(call, connector, "lag", top=top)


@reports_router.get("/partitions", response_model=dict[str, Any])
async def get_partitions(call: Calling, connector: Name, state: str = "") -> Response:
    """Return the partitions of a MirrorSource, or those in one state, with states, reasons and remedies."""
    return await _reported(call, connector, "partitions", state=state)


@reports_router.get("/verdict", response_model=dict[str, Any])
async def get_verdict(call: Calling, connector: Name, rest: str = "", file: str = "") -> Response:
    """Return a flow's state in words, what to do, and the facts. Commands use the URL ``rest`` and the ``file``."""
    return await _reported(call, connector, "verdict", rest=rest, file=file)


@reports_router.get("/rates", response_model=dict[str, Any])
async def get_rates(call: Calling, connector: Name) -> Response:
    """Return what the tasks of a MirrorSource on this worker copy: rates, the last hour, batches by kind, Spark."""
    return await _reported(call, connector, "rates")


@reports_router.get("/groups", response_model=dict[str, Any])
async def get_groups(call: Calling, connector: Name, search: str = "", group: str = "", top: str = "20") -> Response:
    """Return the consumer groups of a MirrorCheckpoint's flow with the highest lag, read from both clusters: those
    whose names contain ``search``, or one ``group`` with its partitions."""
    return await _reported(call, connector, "groups", search=search, group=group, top=top)


@reports_router.get("/move", response_model=dict[str, Any])
async def get_move(
    call: Calling, connector: Name, group: str = "", rehearse: str = "", rest: str = "", top: str = "20"
) -> Response:
    """Return what ``heliograph failover`` would plan for the groups of a MirrorCheckpoint's flow, or for one ``group``,
    step by step. With ``rehearse=true`` records are read and compared too. Nothing is changed. Commands use the URL
    ``rest``."""
    return await _reported(call, connector, "move", group=group, rehearse=rehearse, rest=rest, top=top)


def _searched(kind: str, says: str) -> None:
    async def get(call: Calling, connector: Name, top: str = "100", search: str = "") -> Response:
        return await _reported(call, connector, kind, top=top, search=search)

    get.__doc__ = says
    reports_router.get(f"/{kind}", response_model=dict[str, Any], name=f"get_{kind}")(get)


_searched(
    "audit", "Return the newest entries of the audit of the connector's worker group: who changed what, and when."
)
_searched("plan", "Return what a MirrorSource would change on its target: topics, partitions, configs, ACLs.")
_searched("drift", "Return the differences between a MirrorSource's clusters that its runs leave.")


@reports_router.get("/verification", response_model=dict[str, Any])
async def get_verification(call: Calling, connector: Name) -> Response:
    """Return what ``heliograph verify`` has found so far in the partitions of a MirrorSource."""
    return await _reported(call, connector, "verification")


async def _reported(call: Call, connector: str, kind: str, **query: str) -> Response:
    return json_response(dict(await call.within_time(call.herder.connector_report(connector, kind, query))))


internal_router = APIRouter(prefix="/connectors/{connector}", include_in_schema=False, dependencies=_ANSWERS)


@internal_router.post("/tasks")
async def put_task_configs(call: request_handling.WorkersCalling, connector: Name) -> Response:
    """Store a connector's new task configs, sent by the worker that runs it."""
    signature = await _signature(call)
    read = partial(bodies.read, signature.body, bodies.TASK_CONFIGS, request_handling.WORKERS_BODY_ELEMENTS)
    operation = call.herder.put_task_configs(connector, read, signature)
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


@internal_router.put("/fence")
async def fence_zombies(call: request_handling.FencingCalling, connector: Name) -> Response:
    """Fence a source connector's older tasks (KIP-618)."""
    operation = call.herder.fence_zombies(connector, await _signature(call))
    return await call.here_or_elsewhere(operation, lambda _: Response(status_code=204))


async def _signature(call: Call) -> herder_api.Signature:
    headers = call.request.headers
    return herder_api.Signature(
        headers.get(herder_api.SIGNATURE_HEADER), headers.get(herder_api.ALGORITHM_HEADER), await call.body()
    )


_SUFFIX: Final = "Connector"

plugins_router = APIRouter(prefix="/connector-plugins", tags=["plugins"], dependencies=_TAKES_AND_ANSWERS)


@plugins_router.get("", response_model=list[bodies.Plugin])
async def list_plugins(call: Calling, connectorsOnly: request_handling.TrueFlag = True) -> Response:
    """List the connectors of this worker, or all its plugins."""
    return json_response([bodies.plugin(each) for each in call.herder.plugins(connectors_only=connectorsOnly)])


@plugins_router.get("/{plugin}/config", response_model=list[herder_api.ConfigKeyInfo])
async def get_plugin_config(call: Calling, plugin: Name, version: str | None = None) -> Response:
    """Return the settings of a plugin."""
    return json_response(list(call.herder.plugin_config(plugin, version)))


@plugins_router.put(
    "/{plugin}/config/validate", response_model=herder_api.ConfigInfos, openapi_extra=bodies.schema(bodies.CONFIG)
)
async def validate(call: Calling, plugin: Name) -> Response:
    """Validate a connector's config; each key has its own errors."""
    config = await call.json(bodies.CONFIG)
    included = config.get("connector.class")
    if included is not None and not _alias(included).endswith(_alias(plugin)):
        raise herder_api.BadRequest(f"Included connector type {included} does not match request type {plugin}")
    try:
        return await call.here_or_elsewhere(call.herder.validate(plugin, config), json_response)
    except herder_api.BadRequest as error:
        # As in Java, whose validation runs in another thread and loses the class of the error.
        raise RestError(500, str(error)) from error


def _alias(plugin: str) -> str:
    return plugin.removesuffix(_SUFFIX) or plugin


loggers_router = APIRouter(prefix="/admin/loggers", tags=["loggers"], dependencies=_TAKES_AND_ANSWERS)


@loggers_router.get("", response_model=dict[str, herder_api.LoggerLevel])
async def list_loggers(call: Calling) -> Response:
    """List all loggers of this worker with their levels."""
    return json_response(dict(call.herder.loggers()))


@loggers_router.get("/{logger}", response_model=herder_api.LoggerLevel)
async def get_logger(call: Calling, logger: Name) -> Response:
    """Return the level of a logger."""
    return json_response(call.herder.logger(logger))


@loggers_router.put("/{logger}", response_model=list[str], openapi_extra=bodies.schema(bodies.CONFIG))
async def set_level(call: Calling, logger: Name, scope: str = "worker") -> Response:
    """Set the level of a logger and its descendants; with `scope=cluster` on every worker (204)."""
    level = (await call.json(bodies.CONFIG)).get("level")
    if level is None:
        raise herder_api.BadRequest("Desired 'level' parameter was not specified in request.")
    call.note(detail=f"level={level}, scope={scope}")
    if scope.lower() == "cluster":
        await call.within_time(call.herder.set_cluster_logger(logger, level))
        return Response(status_code=204)
    if scope.lower() != "worker":
        log.warning("ignored unknown scope %r: the level is set on this worker", scope)
    return json_response(list(call.herder.set_logger(logger, level)))
