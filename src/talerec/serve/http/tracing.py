"""OpenTelemetry: a span for each request, where its packages are installed and its environment variables ask for traces."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("talerec")

_ASKED_BY = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
)


class Tracer:
    """Makes the span of a request, as a part of the trace that its `traceparent` header names."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self._tracer = provider.get_tracer("talerec")
        self._extract, self._kind = propagate.extract, trace.SpanKind.SERVER

    @contextmanager
    def request(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> Iterator[Any]:
        """The span of one request; the caller sets what is known at its end."""
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        attributes = {"http.request.method": method, "http.route": route}
        with self._tracer.start_as_current_span(
            f"{method} {route}", self._extract(carrier), self._kind, attributes
        ) as span:
            yield span


def tracer(environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """The tracer that the environment asks for; None without a wish, or without the packages (which is logged)."""
    asked = [environment[name] for name in _ASKED_BY if environment.get(name)]
    if not asked or "none" in asked:
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
