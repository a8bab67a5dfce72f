"""Traces for OpenTelemetry: a span for each REST request, and for each step of a failover.

Nothing is imported, and no span is made, unless the extra ``otel`` is installed and an ``OTEL_*`` variable names where
spans go. The variables are OpenTelemetry's own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

log = logging.getLogger(__name__)

_WHERE: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAME: Final = "OTEL_SERVICE_NAME"


class _Tracing:
    """The tracer of this process; None: no spans are made."""

    tracer: Any = None


def configure_tracing(program: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send spans over OTLP (HTTP) if the environment says where. Takes up to a second then, because of imports."""
    if not any(environment.get(name) for name in _WHERE) or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("%s is set, but traces need the extra otel: pip install 'heliograph[otel]'", " or ".join(_WHERE))
        return
    trace_with(BatchSpanProcessor(OTLPSpanExporter()), environment.get(_NAME) or program)


def trace_with(processor: Any, program: str) -> None:
    """Pass spans to a span processor of the SDK; None ends tracing."""
    if processor is None:
        _Tracing.tracer = None
        return
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource.create({"service.name": program}))
    provider.add_span_processor(processor)
    _Tracing.tracer = provider.get_tracer("heliograph")


def record_request(
    name: str, began_ns: int, headers: Mapping[str, str], attributes: Mapping[str, str | int], *, failed: bool
) -> None:
    """Record the span of a request that has been answered, below the caller's span if ``headers`` name one."""
    if _Tracing.tracer is None:
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    above = TraceContextTextMapPropagator().extract(headers)
    span = _Tracing.tracer.start_span(name, above, SpanKind.SERVER, attributes, start_time=began_ns)
    if failed:
        _set_failed(span)
    span.end()


class TracedSteps:
    """A span of an operation, with a span for each of its steps, which follow each other."""

    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self._whole = None if _Tracing.tracer is None else _Tracing.tracer.start_span(name, attributes=attributes)
        self._step: Any = None

    def begin(self, step: str) -> None:
        """End the current step, if there is one, and begin the next."""
        if self._whole is None:
            return
        from opentelemetry.trace import set_span_in_context

        if self._step is not None:
            self._step.end()
        self._step = _Tracing.tracer.start_span(step, set_span_in_context(self._whole))

    def end(self, error: BaseException | None = None) -> None:
        """End the operation; with ``error`` the current step and the whole have failed."""
        for span in (self._step, self._whole):
            if span is not None:
                if error is not None:
                    span.record_exception(error)
                    _set_failed(span)
                span.end()
        self._step = self._whole = None


def _set_failed(span: Any) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))
