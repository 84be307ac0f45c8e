"""OpenTelemetry traces of requests, if the environment asks for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

logger = logging.getLogger("talerec")

_TRACE_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"
)  # fmt: skip


class Tracer:
    """Opens an OpenTelemetry span per request, in the trace of its `traceparent` header.

    provider: the OpenTelemetry object that exports spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import propagate, trace

        self._tracer = provider.get_tracer("talerec")
        self._extract, self._kind = propagate.extract, trace.SpanKind.SERVER

    def trace_request(
        self, method: str, route: str, headers: Mapping[bytes, bytes]
    ) -> AbstractContextManager[Span]:
        """Return a context manager that opens and closes the OpenTelemetry span of one request.

        The caller adds attributes, such as the status, before it closes. `route` is the URL path.
        The span belongs to the trace of the headers `traceparent` and `tracestate`, if there are
        any.
        """
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        attributes = {"http.request.method": method, "http.route": route}
        parent, name = self._extract(carrier), f"{method} {route}"
        return self._tracer.start_as_current_span(name, parent, self._kind, attributes)


def build_tracer(environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """Return a tracer if the OpenTelemetry environment variables request one, else None.

    None too, with a warning in the log, if the packages of OpenTelemetry are not installed.
    """
    values = [environment[name] for name in _TRACE_VARIABLES if environment.get(name)]
    if not values or "none" in values:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning("no traces: %s is not installed (pip install 'talerec[trace]')", error.name)
        return None
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
