"""
Tracing: with opentelemetry-api installed, a trace continues from `send` to the handler.

The headers of the message carry the W3C context of the active span. Each execution is a span of
its own, a child of the sender's span and linked to it. Without the package, or while no tracer
provider is set up, every function here is one check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import deadletter

from .descriptions import Description, describe
from .exceptions import Undecodable

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None  # type: ignore[assignment]
else:
    # Not the propagator of the site: baggage may be secret, and rows are kept for long.
    _PROPAGATOR = TraceContextTextMapPropagator()

if TYPE_CHECKING:
    from .lifecycle import Claimed

#: The headers of a message that carry its trace.
FIELDS = ("traceparent", "tracestate")
_NOTHING: AbstractContextManager[None] = nullcontext()


def context() -> dict[str, str] | None:
    """Return the headers that carry the active span; None without one."""
    if trace is None:
        return None
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier or None


def join_headers(headers: Any, context: Mapping[str, str]) -> Any:
    """Add the context to the headers, unless the sender has set one."""
    if headers is None:
        return dict(context)
    if not isinstance(headers, Mapping):
        return headers  # `send` refuses them, with a better error text
    if any(isinstance(key, str) and key.lower() in FIELDS for key in headers):
        return headers
    return {**headers, **context}


def is_enabled() -> bool:
    """Return True if a tracer provider is set up."""
    if trace is None:
        return False
    return _tracer(int(monotonic())) is not None


def execution_span(message: Claimed) -> AbstractContextManager[None]:
    """
    Return the context of one execution of a message: a span of its own.

    The messaging conventions want a link to the sender's span, and allow it as the parent where
    one message is processed at a time. The span has both, so that all attempts are in the sender's
    trace, also when an operator retries the message days later.
    """
    if trace is None:
        return _NOTHING
    tracer = _tracer(int(monotonic()))
    return _NOTHING if tracer is None else _processing(message, tracer)


def resume_span(message: Claimed) -> AbstractContextManager[None]:
    """Return a context that ends the span of a message whose handler does not return."""
    if message.span is None:
        return _NOTHING
    return _inside(message.span)


def mark_failed(error: Description) -> None:
    """Mark the active span as failed. Takes no exception, because its `str` may raise."""
    if trace is None:
        return
    span = trace.get_current_span()
    if not span.is_recording():
        return
    span.add_event(
        "exception",
        {
            "exception.type": error.exception,
            "exception.message": error.text,
            "exception.stacktrace": error.traceback,
        },
    )
    span.set_attribute("error.type", error.exception)
    span.set_status(trace.Status(trace.StatusCode.ERROR, error.text))


def flush(seconds: float = 5.0) -> None:
    """Export buffered spans: a forked worker ends without the exit handlers of the SDK."""
    if trace is not None:
        export = getattr(trace.get_tracer_provider(), "force_flush", None)
        if export is not None:
            export(round(seconds * 1000))


def span_ids() -> dict[str, str]:
    """Return the ids of the active span for a log line; empty without one."""
    if trace is None:
        return {}
    active = trace.get_current_span().get_span_context()
    if not active.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(active.trace_id),
        "span_id": trace.format_span_id(active.span_id),
    }


@lru_cache(maxsize=1)
def _tracer(second: int) -> Any:
    """
    Return the tracer, or None while no tracer provider is set up.

    Cached for a second: the API reads the environment each time, 4 microseconds per message.
    """
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None
    return provider.get_tracer("deadletter", deadletter.__version__)


@contextmanager
def _processing(message: Claimed, tracer: Any) -> Iterator[None]:
    carrier = _carrier(message)
    # Without a carrier the active span is the parent: a test that drains inside its own span.
    parent = _PROPAGATOR.extract(carrier) if carrier else None
    sender = trace.get_current_span(parent).get_span_context() if carrier else None
    message.span = tracer.start_span(
        f"process {message.name}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=_attributes(message),
        links=[trace.Link(sender)] if sender is not None and sender.is_valid else (),
    )
    with _inside(message.span):
        yield


@contextmanager
def _inside(span: Any) -> Iterator[None]:
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            mark_failed(describe(error))
            raise
        finally:
            # The handler's thread and the pump both get here; the first of them ends the span.
            if span.is_recording():
                span.end()


def _carrier(message: Claimed) -> dict[str, str]:
    """Return the trace headers of a message; stored headers may be anything."""
    if message.raw_headers is None:
        return {}
    try:
        headers: Any = message.headers
    except Undecodable:
        return {}
    if not isinstance(headers, Mapping):
        return {}
    found = {key.lower(): value for key, value in headers.items() if isinstance(value, str)}
    return {key: found[key] for key in FIELDS if key in found}


def _attributes(message: Claimed) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "deadletter",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": str(message.id),
        "messaging.deadletter.message.name": message.name,
        "messaging.deadletter.attempt": message.attempt,
    }
    if message.stream is not None:
        attributes["messaging.deadletter.stream"] = message.stream
    return attributes
