"""The workers' requests to each other, signed and not (KIP-507), as distributed and as dedicated workers take them."""

from __future__ import annotations

from typing import Final

from tests.interop.rest.asks import Ask, Until, delete, file_source, get, post, put, states

_WRONG: Final = {"X-Connect-Authorization": "d3Jvbmc=", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}

INTERNAL: Final = (
    post("create fenced", "/connectors", {"name": "fenced", "config": file_source(None)}),
    post("task configs, unsigned", "/connectors/fenced/tasks", [], before=states("fenced", "RUNNING", "RUNNING")),
    post("task configs, unsigned, missing", "/connectors/x/tasks", []),
    post("task configs, wrongly signed", "/connectors/fenced/tasks", [], headers=_WRONG),
    post("task configs, wrongly signed, missing", "/connectors/x/tasks", [], headers=_WRONG),
    post("task configs, no algorithm", "/connectors/fenced/tasks", [], headers={"X-Connect-Authorization": "d3Jvbmc="}),
    post(
        "task configs, no signature",
        "/connectors/fenced/tasks",
        [],
        headers={"X-Connect-Request-Signature-Algorithm": "HmacSHA256"},
    ),
    post(
        "task configs, algorithm not allowed",
        "/connectors/fenced/tasks",
        [],
        headers={**_WRONG, "X-Connect-Request-Signature-Algorithm": "HmacMD5"},
    ),
    post(
        "task configs, algorithm nobody knows",
        "/connectors/fenced/tasks",
        [],
        headers={**_WRONG, "X-Connect-Request-Signature-Algorithm": "Rot13"},
    ),
    post(
        "task configs, not base64", "/connectors/fenced/tasks", [], headers={**_WRONG, "X-Connect-Authorization": "%%%"}
    ),
    post("task configs, broken JSON, unsigned", "/connectors/fenced/tasks", b"["),
    post("task configs, an object, unsigned", "/connectors/fenced/tasks", {}),
    post("task configs, of objects, unsigned", "/connectors/fenced/tasks", [{"a": {}}]),
    post("task configs, null, unsigned", "/connectors/fenced/tasks", None),
    post("task configs, no body, unsigned", "/connectors/fenced/tasks"),
    post("task configs, signed, missing", "/connectors/x/tasks", [], signed=True),
    post(
        "task configs, signed",
        "/connectors/fenced/tasks",
        # What the connector computes itself: others would be corrected by the worker that runs it, after a second.
        [file_source("fenced", task__class="org.apache.kafka.connect.file.FileStreamSourceTask")],
        signed=True,
    ),
    get(
        "task configs, stored",
        "/connectors/fenced/tasks",
        before=Until("/connectors/fenced/tasks", body=[{"config": {"topic": "$TOPIC"}}]),
    ),
    put("fence, unsigned", "/connectors/fenced/fence"),
    put("fence, unsigned, missing", "/connectors/x/fence"),
    put("fence, wrongly signed", "/connectors/fenced/fence", headers=_WRONG),
    put("fence, signed, missing", "/connectors/x/fence", signed=True),
    put("fence, signed", "/connectors/fenced/fence", signed=True, before=states("fenced", "RUNNING", "RUNNING")),
    put("stop fenced", "/connectors/fenced/stop"),
    post(
        "task configs, signed, stopped",
        "/connectors/fenced/tasks",
        [{"a": "b"}],
        signed=True,
        before=states("fenced", "STOPPED"),
    ),
    post("task configs, signed, stopped, none", "/connectors/fenced/tasks", [], signed=True),
    delete("delete fenced", "/connectors/fenced"),
)

_FLOW: Final = "/$SOURCE/$TARGET/connectors/MirrorHeartbeatConnector"
_UNKNOWN_FLOW: Final = "/$SOURCE/nowhere/connectors/MirrorHeartbeatConnector"
_UNKNOWN: Final = "/$SOURCE/$TARGET/connectors/x"

DEDICATED: Final = (
    # The herders are behind the REST; a signed request for what is missing tells that the group stands.
    put("fence, signed, missing", f"{_UNKNOWN}/fence", signed=True),
    post("task configs, signed, missing", f"{_UNKNOWN}/tasks", [], signed=True),
    get("root", "/"),
    get("health", "/health"),
    get("no such path", "/nothing"),
    get("connectors", "/connectors"),
    get("a flow", "/$SOURCE/$TARGET"),
    get("connectors of a flow", "/$SOURCE/$TARGET/connectors"),
    get("tasks of a connector", f"{_FLOW}/tasks"),
    get("fence, GET", f"{_FLOW}/fence"),
    get("plugins", "/connector-plugins"),
    get("loggers", "/admin/loggers"),
    post("task configs, unknown flow", f"{_UNKNOWN_FLOW}/tasks", []),
    post("task configs, unknown flow, wrongly signed", f"{_UNKNOWN_FLOW}/tasks", [], headers=_WRONG),
    put("fence, unknown flow", f"{_UNKNOWN_FLOW}/fence"),
    post("task configs, the other way round", "/$TARGET/$SOURCE/connectors/MirrorHeartbeatConnector/tasks", []),
    post("task configs, unsigned", f"{_FLOW}/tasks", []),
    post("task configs, wrongly signed", f"{_FLOW}/tasks", [], headers=_WRONG),
    post("task configs, broken JSON", f"{_FLOW}/tasks", b"["),
    post("task configs, an object", f"{_FLOW}/tasks", {}),
    post("task configs, no body", f"{_FLOW}/tasks"),
    post("task configs, text", f"{_FLOW}/tasks", b"[]", content_type="text/plain"),
    put("fence, unsigned", f"{_FLOW}/fence"),
    put("fence, wrongly signed", f"{_FLOW}/fence", headers=_WRONG),
    put("fence, signed", f"{_FLOW}/fence", signed=True),
    Ask("fence, OPTIONS", "OPTIONS", f"{_FLOW}/fence"),
)
