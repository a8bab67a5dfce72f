"""Traces of REST requests and of the steps of an operation, with OpenTelemetry's exporter to memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from connect.kafka.tracing import TracedSteps, configure_tracing, trace_with
from rest.access import route_of
from tests.kit.raw_http import ask
from tests.kit.rest_herder import DictHerder

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    trace_with(SimpleSpanProcessor(exporter), "test")
    yield exporter
    trace_with(None, "")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_has_a_span_below_its_callers(
    port: int, herder: DictHerder, exporter: InMemorySpanExporter
) -> None:
    herder.add("a b", file="f")
    await ask(port, "PUT", "/connectors/a%20b/pause", headers={"traceparent": PARENT})
    await ask(port, "GET", "/nowhere/at/all")
    herder.refusals["set_target_state"] = RuntimeError("broken")
    await ask(port, "PUT", "/connectors/a%20b/resume")
    paused, missing, failed = exporter.get_finished_spans()
    assert paused.name == "PUT /connectors/{connector}/pause"
    assert paused.attributes == {
        "http.request.method": "PUT",
        "http.response.status_code": 202,
        "http.route": "/connectors/{connector}/pause",
        "enduser.id": "anonymous",
    }
    assert paused.parent is not None and f"{paused.parent.trace_id:032x}" == PARENT.split("-")[1]
    assert (missing.name, missing.status.status_code) == ("GET", StatusCode.UNSET)
    assert failed.status.status_code is StatusCode.ERROR and failed.resource.attributes["service.name"] == "test"


@pytest.mark.parametrize(
    ("path", "has_flow", "route"),
    [
        ("/", False, "/"),
        ("/connectors/x/tasks/3/restart", False, "/connectors/{connector}/tasks/{task}/restart"),
        ("/us/eu/connectors/x/status", True, "/{source}/{target}/connectors/{connector}/status"),
        ("/admin/loggers/rest", False, "/admin/loggers/{logger}"),
        ("/ui/static/pages/flow.js", True, "/ui/static"),
        ("/metrics", True, "/metrics"),
    ],
)
def test_routes_have_no_names(path: str, has_flow: bool, route: str) -> None:
    assert route_of(path, has_flow=has_flow) == route


def test_steps_follow_each_other_below_the_whole(exporter: InMemorySpanExporter) -> None:
    steps = TracedSteps("failover", {"flow": "us->eu"})
    steps.begin("drain")
    steps.begin("move the groups")
    steps.end(RuntimeError("lost"))
    drain, move, whole = exporter.get_finished_spans()
    assert [one.name for one in (drain, move, whole)] == ["drain", "move the groups", "failover"]
    assert drain.parent is not None and whole.context is not None and drain.parent.span_id == whole.context.span_id
    assert [one.status.status_code.name for one in (drain, move, whole)] == ["UNSET", "ERROR", "ERROR"]


def test_nothing_is_imported_without_the_variables() -> None:
    code = (
        "import sys; from connect.kafka.tracing import *; configure_tracing('x', {}); TracedSteps('a', {}).begin('b'); "
        "record_request('a', 0, {}, {}, failed=False); print([n for n in sys.modules if n.startswith('opentelemetry')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_variables_without_an_extra_are_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    configure_tracing("x", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    assert "heliograph[otel]" in caplog.text
