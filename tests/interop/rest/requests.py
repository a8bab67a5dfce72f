"""Everything that is asked of Java's worker and of ours, in sessions of a worker each."""

from __future__ import annotations

from typing import Final

from tests.interop.rest.asks import Ask, Session, delete, file_source, get, post, put, states
from tests.interop.rest.requests_connectors import FAILING, LIFE, MISSING, NAMES, REFUSED, STATES
from tests.interop.rest.requests_internal import DEDICATED, INTERNAL
from tests.interop.rest.requests_offsets import MIRROR_OFFSETS, OFFSETS
from tests.interop.rest.requests_validation import VALIDATION
from tests.interop.rest.requests_worker import LOGGERS, PLUGINS, ROOT, SHAPES

_ORIGIN: Final = {"Origin": "http://elsewhere.example"}
_PREFLIGHT: Final = {
    **_ORIGIN,
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "content-type",
}
_RUNNING: Final = states("lines", "RUNNING", "RUNNING")


def _validate(name: str, **changes: str) -> Ask:
    return put(
        f"validate, {name}",
        "/connector-plugins/FileStreamSource/config/validate",
        file_source("x", **changes),
        view="validation",
    )


PLAIN: Final = Session(
    "plain",
    (
        *ROOT,
        *SHAPES,
        *PLUGINS,
        *LOGGERS,
        *VALIDATION,
        *REFUSED,
        *MISSING,
        *LIFE,
        *FAILING,
        *STATES,
        *OFFSETS,
        *MIRROR_OFFSETS,
        *INTERNAL,
        *NAMES,
    ),
)

CLOSED: Final = Session(
    "closed",
    (
        get("no admin", "/admin/loggers"),
        put("no admin, set", "/admin/loggers/root", {"level": "INFO"}),
        get("topics", "/connectors/x/topics"),
        put("topics reset", "/connectors/x/topics/reset"),
        get("origin", "/", headers=_ORIGIN),
        get("no origin", "/"),
        get("origin, not found", "/connectors/x", headers=_ORIGIN),
        Ask("preflight", "OPTIONS", "/connectors", headers=_PREFLIGHT),
        Ask(
            "preflight of a method that is not allowed",
            "OPTIONS",
            "/connectors",
            headers={**_PREFLIGHT, "Access-Control-Request-Method": "DELETE"},
        ),
        Ask("preflight, no such path", "OPTIONS", "/nothing", headers=_PREFLIGHT),
        post(
            "override refused",
            "/connectors",
            {"name": "lines", "config": file_source(None, producer__override__acks="1")},
        ),
        _validate("override refused", producer__override__acks="1"),
        _validate("override nobody knows, refused", producer__override__nothing="1"),
        _validate(
            "own offsets topic, override refused", offsets__storage__topic="own", admin__override__client__id="x"
        ),
        _validate("a secret", file="${env:NOBODY_SET_THIS}"),
        _validate("a secret in a number", tasks__max="${env:NOBODY_SET_THIS}"),
        _validate("a provider that is not there", file="${vault:a:b}"),
        post(
            "create with a secret", "/connectors", {"name": "lines", "config": file_source(None, secret="${env:PATH}")}
        ),
        get("lines with a secret", "/connectors/lines/config"),
    ),
    {
        "admin.listeners": "",
        "topic.tracking.enable": "false",
        "access.control.allow.origin": "http://elsewhere.example",
        "access.control.allow.methods": "GET,PUT",
        "response.http.headers.config": 'add X-Test: yes, "set Cache-Control: no-cache, no-store"',
        "connector.client.config.override.policy": "None",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "connect.protocol": "compatible",
    },
)

EXACTLY_ONCE: Final = Session(
    "exactly once",
    (
        _validate("exactly once, required", exactly__once__support="required"),
        _validate("exactly once, boundary of the connector", transaction__boundary="connector"),
        _validate("exactly once, override of the id", producer__override__transactional__id="mine"),
        _validate("exactly once, override of idempotence", producer__override__enable__idempotence="false"),
        _validate("exactly once, own offsets topic", exactly__once__support="required", offsets__storage__topic="own"),
        _validate("principal, override refused", producer__override__acks="1"),
        _validate("principal, override allowed", producer__override__sasl__jaas__config="x"),
        put("topics reset refused", "/connectors/x/topics/reset"),
        get("any origin", "/", headers=_ORIGIN),
        Ask("any origin, preflight", "OPTIONS", "/connectors", headers=_PREFLIGHT),
        put("create", "/connectors/lines/config", file_source(None, exactly__once__support="required")),
        get("running", "/connectors/lines/status", before=_RUNNING),
        put("fence, unsigned", "/connectors/lines/fence"),
        put("fence, signed", "/connectors/lines/fence", signed=True),
        put("stop", "/connectors/lines/stop", before=_RUNNING),
        get("offsets", "/connectors/lines/offsets", before=states("lines", "STOPPED")),
        Ask(
            "alter offsets",
            "PATCH",
            "/connectors/lines/offsets",
            {"offsets": [{"partition": {"filename": "$FOLDER/lines.txt"}, "offset": {"position": 4}}]},
        ),
        get("offsets, altered", "/connectors/lines/offsets"),
        delete("reset offsets", "/connectors/lines/offsets"),
        put("resume", "/connectors/lines/resume"),
        get("running again", "/connectors/lines/status", before=_RUNNING),
        post("restart with tasks", "/connectors/lines/restart?includeTasks=true"),
        get("running after a restart", "/connectors/lines/status", before=_RUNNING),
        put("more tasks", "/connectors/lines/config", file_source(None, tasks__max="3")),
        get("running with another config", "/connectors/lines/status", before=_RUNNING),
        delete("delete", "/connectors/lines"),
    ),
    {
        "exactly.once.source.support": "enabled",
        "topic.tracking.allow.reset": "false",
        "access.control.allow.origin": "*",
        "connector.client.config.override.policy": "Principal",
    },
)

MIRROR_MAKER: Final = Session("dedicated", DEDICATED, dedicated=True)

SESSIONS: Final = (PLAIN, CLOSED, EXACTLY_ONCE, MIRROR_MAKER)
