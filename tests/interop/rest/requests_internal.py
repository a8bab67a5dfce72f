"""The workers' requests to each other, signed and not (KIP-507), as distributed and as dedicated workers take them."""

from __future__ import annotations

from typing import Any, Final

from tests.interop.rest.asks import NOTHING, Ask, Until, delete, file_source, get, post, put, states

_SIGNATURE: Final = "X-Connect-Authorization"
_ALGORITHM: Final = "X-Connect-Request-Signature-Algorithm"
_WRONG: Final = {_SIGNATURE: "d3Jvbmc=", _ALGORITHM: "HmacSHA256"}


def _tasks(name: str, body: Any = NOTHING, **more: Any) -> Ask:
    return post(f"task configs, {name}", "/connectors/fenced/tasks", body, **more)


INTERNAL: Final = (
    post("create fenced", "/connectors", {"name": "fenced", "config": file_source(None)}),
    _tasks("unsigned", [], before=states("fenced", "RUNNING", "RUNNING")),
    post("task configs, unsigned, missing", "/connectors/x/tasks", []),
    _tasks("wrongly signed", [], headers=_WRONG),
    post("task configs, wrongly signed, missing", "/connectors/x/tasks", [], headers=_WRONG),
    _tasks("no algorithm", [], headers={_SIGNATURE: "d3Jvbmc="}),
    _tasks("no signature", [], headers={_ALGORITHM: "HmacSHA256"}),
    _tasks("algorithm not allowed", [], headers={**_WRONG, _ALGORITHM: "HmacMD5"}),
    _tasks("algorithm nobody knows", [], headers={**_WRONG, _ALGORITHM: "Rot13"}),
    _tasks("not base64", [], headers={**_WRONG, _SIGNATURE: "%%%"}),
    _tasks("broken JSON, unsigned", b"["),
    _tasks("an object, unsigned", {}),
    _tasks("of objects, unsigned", [{"a": {}}]),
    _tasks("null, unsigned", None),
    _tasks("no body, unsigned"),
    post("task configs, signed, missing", "/connectors/x/tasks", [], signed=True),
    _tasks(
        "signed",
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
    _tasks("signed, stopped", [{"a": "b"}], signed=True, before=states("fenced", "STOPPED")),
    _tasks("signed, stopped, none", [], signed=True),
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
