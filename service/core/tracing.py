"""IDs of HTTP requests in log lines, tasks and traces; traces of requests, searches and tasks with OpenTelemetry.

The current request's ID is a context variable of ``asgi-correlation-id``; None outside requests and tasks. A task
stores the ID of the request that created it, and a worker sets it again while processing the task.

Traces are sent by OTLP over HTTP. Without ``CINESTRATA_OTLP_ENDPOINT``, no OpenTelemetry module is imported.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asgi_correlation_id import correlation_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

REQUEST_ID_HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_NANOSECONDS = 1_000_000  # per millisecond
_provider: TracerProvider | None = None
tracer: Tracer | None = None  # None: no spans are recorded


def is_well_formed(value: str) -> bool:
    """Check whether a client's ID may appear in logs and headers: 1 to 64 letters, digits and ``._:-``."""
    return _WELL_FORMED.fullmatch(value) is not None


@contextmanager
def use_request_id(value: str | None) -> Iterator[None]:
    """Set the current context's request ID during a ``with`` block."""
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)


def start_tracing(endpoint: str | None, service: str) -> None:
    """Send this process's spans to a collector such as ``http://collector:4318``; None: trace nothing."""
    if endpoint is None or tracer is not None:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {"service.name": service, "service.instance.id": f"{os.uname().nodename}:{os.getpid()}"}
    )
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use_provider(provider)


def use_provider(provider: TracerProvider | None) -> None:
    """Record this process's spans with a provider, after flushing the previous one; None: record nothing."""
    global _provider, tracer
    if _provider is not None:
        _provider.shutdown()
    _provider = provider
    tracer = None if provider is None else provider.get_tracer("cinestrata")


@contextmanager
def request_span(method: str, headers: Mapping[str, str]) -> Iterator[Span]:
    """Record an HTTP request as a span in the trace that its ``traceparent`` names, among lower-case headers."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if tracer is None:
        raise AssertionError("spans are started only after tracing is configured")
    context = TraceContextTextMapPropagator().extract(headers)
    attributes = _attributes({"http.request.method": method})
    with tracer.start_as_current_span(
        method, context=context, kind=SpanKind.SERVER, attributes=attributes
    ) as span:
        yield span


def record_stages(
    name: str,
    stages: Sequence[tuple[str, float]],
    attributes: Mapping[str, Any],
    error: BaseException | None = None,
) -> None:
    """Record a span and its consecutive stages (names and milliseconds), which have just ended, maybe with an error."""
    if tracer is None:
        return
    from opentelemetry import trace

    start = time.time_ns() - int(sum(milliseconds for _, milliseconds in stages) * _NANOSECONDS)
    parent = tracer.start_span(name, start_time=start, attributes=_attributes(attributes))
    if error is not None:
        parent.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
    context = trace.set_span_in_context(parent)
    for stage, milliseconds in stages:
        span = tracer.start_span(f"{name} {stage}", context, attributes=_attributes({}), start_time=start)
        start += int(milliseconds * _NANOSECONDS)
        span.end(start)
    parent.end(start)


class TaskTrace:
    """A worker's work on a task, which is recorded with its stages when it ends."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._attributes = attributes
        self._stages: list[tuple[str, float]] = []  # names, and starts on the monotonic clock

    def enter_stage(self, name: str) -> None:
        """Begin a stage, unless it is the current one."""
        if not self._stages or name != self._stages[-1][0]:
            self._stages.append((name, time.monotonic()))

    def end(self, error: BaseException | None) -> None:
        """Record the work, with the error that ended it, if any."""
        starts = [*(start for _, start in self._stages), time.monotonic()]
        stages = [(name, 1000 * (starts[n + 1] - start)) for n, (name, start) in enumerate(self._stages)]
        record_stages("task", stages, self._attributes, error)


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop missing attributes and add the request ID."""
    with_request = {"cinestrata.request_id": correlation_id.get(), **values}
    return {name: value for name, value in with_request.items() if value is not None}
