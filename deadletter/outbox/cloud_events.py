"""CloudEvents: the form in which messages of the outbox leave the application."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """
    A message of the outbox as a transport publishes it.

    `id` is that of its row in the outbox and stays the same when it is published again: a consumer
    that has seen the pair of `source` and `id` before ignores it.
    """

    id: str
    #: The attribute `type`: "orders.shipped".
    topic: str
    #: Which site published it.
    source: str
    time: datetime
    #: JSON as it is stored; published as it is.
    data: str
    #: Events of one key reach the broker in the order in which they were stored.
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    #: W3C Trace Context; None: published outside a trace.
    traceparent: str | None = None
    tracestate: str | None = None

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Yield the attributes and extensions that have a value, except the data."""
        yield "specversion", SPEC_VERSION
        yield "id", self.id
        yield "source", self.source
        yield "type", self.topic
        yield "time", self.time.isoformat()
        yield "datacontenttype", CONTENT_TYPE
        for name, value in (
            ("partitionkey", self.key),
            ("traceparent", self.traceparent),
            ("tracestate", self.tracestate),
        ):
            if value is not None:
                yield name, value
