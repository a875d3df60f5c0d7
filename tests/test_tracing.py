"""A trace goes on from the sender to the handler, through threads, the loop, and the dead."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from deadletter import Outgoing, asend, operations, send, send_many, testing, tracing
from deadletter.exceptions import PayloadRejected
from deadletter.models import Message, PoisonRecord
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from tests.patience import PATIENCE
from tests.processes import database_url, wait_until
from tests.sample.journal import DIRECTORY

pytestmark = pytest.mark.django_db

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """A real SDK that keeps what it would export."""

    def __init__(self, **options: Any) -> None:
        self.provider = TracerProvider(**options)
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("shop")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Whether tracing is set up is remembered for a second, too long for a test."""
    tracing._tracer.cache_clear()
    yield
    tracing._tracer.cache_clear()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """Tracing set up for one test; the API allows it once in a process."""
    found = Traces()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found.provider)
    yield found
    found.provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def written(context: trace.SpanContext) -> str:
    """Write a context as the W3C wants it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def send_in_a_request(traces: Traces, *args: Any, **options: Any) -> tuple[Message, Any]:
    with traces.tracer.start_as_current_span("request") as request:
        return send(*args, **options), request.get_span_context()


def test_a_message_carries_the_span_that_sent_it(traces: Traces) -> None:
    message, request = send_in_a_request(traces, "mail", headers={"tenant": 7})

    assert message.headers == {"tenant": 7, "traceparent": written(request)}
    assert Message.objects.get().headers == message.headers


def test_many_messages_carry_it_as_well(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"):
        send_many([Outgoing("mail"), Outgoing("mail", headers={"traceparent": FOREIGN})])
        expected = tracing.context()

    assert [m.headers for m in Message.objects.all()] == [expected, {"traceparent": FOREIGN}]


@pytest.mark.django_db(transaction=True)
def test_an_async_sender_is_followed_into_its_thread(traces: Traces) -> None:
    async def view() -> dict[str, str] | None:
        with traces.tracer.start_as_current_span("request"):
            await asend("mail")
            return tracing.context()

    expected = asyncio.run(view())

    assert Message.objects.get().headers == expected


@pytest.mark.parametrize(
    "own", [{"traceparent": FOREIGN}, {"TraceParent": FOREIGN}, {"tracestate": "vendor=1"}]
)
def test_what_the_sender_says_is_never_replaced(traces: Traces, own: dict[str, str]) -> None:
    message, _ = send_in_a_request(traces, "mail", headers=own)

    assert message.headers == own


def test_without_an_active_span_nothing_is_added(traces: Traces) -> None:
    assert send("mail").headers is None
    assert Message.objects.get().headers is None


def test_headers_that_are_no_dict_are_still_refused(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"), pytest.raises(PayloadRejected):
        send("mail", headers=["traceparent"])  # type: ignore[arg-type]


def test_an_execution_is_a_span_by_the_messaging_conventions(traces: Traces, handles) -> None:
    handles("mail.send", lambda message: None)
    message, request = send_in_a_request(traces, "mail.send", stream="customer-7")

    testing.drain()

    [span] = traces.named("process mail.send")
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.context.trace_id == request.trace_id
    assert parent_of(span) == request.span_id
    assert [link.context.span_id for link in span.links] == [request.span_id]
    assert span.status.status_code is trace.StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "deadletter",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(message.pk),
        "messaging.deadletter.message.name": "mail.send",
        "messaging.deadletter.attempt": 1,
        "messaging.deadletter.stream": "customer-7",
    }
    assert span.instrumentation_scope.name == "deadletter"


def test_a_message_without_context_begins_a_trace(traces: Traces, handles) -> None:
    handles("mail", lambda message: None)
    send("mail")

    testing.drain()

    [span] = traces.named("process mail")
    assert span.parent is None
    assert not span.links


def test_what_a_handler_sends_belongs_to_its_span(traces: Traces, handles) -> None:
    handles("first", lambda message: send("second"))
    handles("second", lambda message: None)
    _, request = send_in_a_request(traces, "first")

    testing.drain()

    [first], [second] = traces.named("process first"), traces.named("process second")
    assert parent_of(second) == first.context.span_id
    assert second.context.trace_id == request.trace_id


def test_a_failure_is_an_error_with_its_exception(traces: Traces, handles, caplog) -> None:
    def fail(message: Any) -> None:
        raise ValueError("no such address")

    handles("mail", fail)
    _, request = send_in_a_request(traces, "mail")

    with caplog.at_level(logging.INFO, "deadletter"):
        testing.drain()

    [span] = traces.named("process mail")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "ValueError: no such address"
    assert (span.attributes or {})["error.type"] == "ValueError"
    [event] = span.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert "in fail" in str((event.attributes or {})["exception.stacktrace"])
    # The line of the log names the trace.
    [line] = [r for r in caplog.records if getattr(r, "event", "") == "message_failed"]
    assert line.fields["trace_id"] == f"{request.trace_id:032x}"  # type: ignore[attr-defined]
    assert line.fields["span_id"] == f"{span.context.span_id:016x}"  # type: ignore[attr-defined]


def test_an_exception_that_cannot_be_printed_is_an_error_too(traces: Traces, handles) -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    def fail(message: Any) -> None:
        raise Hostile

    handles("mail", fail)
    send("mail")

    assert testing.drain().failed == 1

    [span] = traces.named("process mail")
    assert span.status.status_code is trace.StatusCode.ERROR


def test_every_attempt_and_the_retry_of_poison_stay_in_one_trace(
    traces: Traces, handles, clock, policy
) -> None:
    policy(max_attempts=2, cooldown=10)
    broken = [True]

    def ship(message: Any) -> None:
        if broken[0]:
            raise RuntimeError("no stock")

    handles("ship", ship)
    _, request = send_in_a_request(traces, "ship")
    testing.drain()
    clock.advance(11)
    testing.drain()
    poison = PoisonRecord.objects.get()
    clock.advance(86_400)
    broken.clear()
    broken.append(False)

    with traces.tracer.start_as_current_span("the operator's own request"):
        operations.retry_poison([poison.pk], by="ann")
    testing.drain()

    spans = traces.named("process ship")
    assert [s.attributes["messaging.deadletter.attempt"] for s in spans if s.attributes] == [
        1,
        2,
        1,
    ]
    assert {s.context.trace_id for s in spans} == {request.trace_id}
    assert {parent_of(s) for s in spans} == {request.span_id}
    error, unset = trace.StatusCode.ERROR, trace.StatusCode.UNSET
    assert [s.status.status_code for s in spans] == [error, error, unset]


def test_a_transaction_left_open_is_an_error_of_the_span(
    traces: Traces, handles, transactional_db
) -> None:
    from django.db import transaction

    handles("mail", lambda message: transaction.set_autocommit(False))
    send("mail")

    assert testing.drain().failed == 1

    [span] = traces.named("process mail")
    assert str(span.status.description).startswith("deadletter.worker.execute.TransactionLeftOpen")


@pytest.mark.parametrize(
    "headers",
    [
        '{"traceparent": "00-zz-xx-01"}',
        '{"traceparent": 17}',
        '{"traceparent": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]}',
        '{"tracestate": "a=1"}',
        '["traceparent"]',
        '"traceparent"',
        "{broken",
        "7",
    ],
)
def test_headers_that_make_no_sense_begin_a_new_trace(
    traces: Traces, handles, headers: str
) -> None:
    from django.db import connection

    handles("mail", lambda message: None)
    send("mail")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET headers = %s", [headers])

    assert testing.drain().completed == 1

    [span] = traces.named("process mail")
    assert span.parent is None


def drain_with_threads() -> None:
    Worker(Options(name="here", drain=True, concurrency=2)).run()


@pytest.mark.django_db(transaction=True)
def test_handlers_in_threads_and_on_the_loop_are_inside_their_own_span(
    traces: Traces, handles
) -> None:
    seen: dict[tuple[str, int], int] = {}
    together = threading.Barrier(2, timeout=PATIENCE)

    def note(message: Any) -> None:
        seen[message.name, message.id] = trace.get_current_span().get_span_context().span_id

    def in_thread(message: Any) -> None:
        together.wait()
        note(message)

    async def on_loop(message: Any) -> None:
        await asyncio.sleep(0.01)
        note(message)

    handles("thread", in_thread)
    handles("loop", on_loop)
    names = ("thread", "thread", "loop", "loop")
    requests = [send_in_a_request(traces, name)[1] for name in names]

    drain_with_threads()

    spans = traces.named("process thread") + traces.named("process loop")
    inside = {
        (s.name.removeprefix("process "), int(str(s.attributes["messaging.message.id"]))): (
            s.context.span_id
        )
        for s in spans
        if s.attributes
    }
    assert len(seen) == 4
    assert inside == seen
    assert {parent_of(s) for s in spans} == {r.span_id for r in requests}


@pytest.mark.django_db(transaction=True)
def test_an_async_failure_and_an_async_timeout_are_errors(traces: Traces, handles, policy) -> None:
    async def fail(message: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def hang(message: Any) -> None:
        await asyncio.sleep(30)

    policy(max_attempts=1)
    handles("fail", fail)
    handles("hang", hang, timeout=timedelta(seconds=0.05))
    send_many([Outgoing("fail"), Outgoing("hang")])

    drain_with_threads()

    [failed], [hung] = traces.named("process fail"), traces.named("process hang")
    assert failed.status.description == "ValueError: no"
    assert str(hung.status.description).endswith("TookTooLong: took longer than 0.05 s")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_span_of_a_thread_that_hangs_ends_at_its_limit(
    traces: Traces, handles, policy, caplog
) -> None:
    gate = threading.Event()
    policy(max_attempts=1)
    handles("hang", lambda message: gate.wait(PATIENCE), timeout=timedelta(seconds=0.2))
    send("hang")
    process = Worker(Options(name="here", poll=0.05, grace=0.1))
    worker = threading.Thread(target=process.run, daemon=True)

    worker.start()
    try:
        wait_until(lambda: traces.named("process hang"), why=lambda: "no span")
    finally:
        gate.set()
        process.stop(at_once=True)
        worker.join(PATIENCE)

    assert not worker.is_alive()
    # The handler ends as well, and finds that there is nothing left to end.
    wait_until(lambda: "deadletter-executor" not in {t.name for t in threading.enumerate()})
    assert "ended span" not in caplog.text
    [span] = traces.named("process hang")
    assert str(span.status.description).endswith("TookTooLong: took longer than 0.2 s")


def test_a_trace_that_is_not_sampled_is_carried_on_unsampled(monkeypatch, handles) -> None:
    silent = Traces(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: silent.provider)
    flags: list[int] = []
    handles(
        "mail",
        lambda message: flags.append(trace.get_current_span().get_span_context().trace_flags),
    )

    message, request = send_in_a_request(silent, "mail")
    testing.drain()

    assert message.headers == {"traceparent": written(request)}
    assert [flag & trace.TraceFlags.SAMPLED for flag in (request.trace_flags, *flags)] == [0, 0]
    assert silent.named("process mail") == []


def test_where_nobody_has_set_up_tracing_no_span_is_begun(handles, monkeypatch) -> None:
    proxy = trace.ProxyTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: proxy)
    monkeypatch.setattr(tracing, "_processing", None)
    handles("mail", lambda message: None)
    send("mail")

    assert testing.drain().completed == 1


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import django
django.setup()
from deadletter import tracing
assert tracing.trace is None
assert tracing.context() is None
assert tracing.span_ids() == {}
assert tracing.execution_span(None) is tracing._NOTHING
import deadletter.worker.executors, deadletter.logs, deadletter.lifecycle.enqueue
assert not [name for name in sys.modules if name.startswith("opentelemetry.")]
"""


@pytest.mark.process
def test_the_package_is_not_needed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr


WORKER = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Append(SpanExporter):
    def export(self, spans):
        with open(sys.argv[1], "a") as file:
            for span in spans:
                print(f"{span.name} {span.context.trace_id:032x}", file=file)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
# So late that only the end of the process can export.
provider.add_span_processor(BatchSpanProcessor(Append(), schedule_delay_millis=600_000))
trace.set_tracer_provider(provider)

from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_worker", "--drain", "--processes", "2"])
"""


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_forked_workers_export_their_spans_before_they_end(traces: Traces, tmp_path: Path) -> None:
    with traces.tracer.start_as_current_span("request") as request:
        send_many([Outgoing("sample.work"), Outgoing("sample.async")])
    exported = tmp_path / "spans"

    ran = subprocess.run(
        [sys.executable, "-c", WORKER, str(exported)],
        env=os.environ
        | {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url(),
            DIRECTORY: str(tmp_path),
        },
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    trace_id = f"{request.get_span_context().trace_id:032x}"
    assert sorted(exported.read_text().splitlines()) == [
        f"process sample.async {trace_id}",
        f"process sample.work {trace_id}",
    ]
