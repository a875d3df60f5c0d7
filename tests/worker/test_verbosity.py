"""What a worker logs about single messages, by verbosity, and about itself when it starts."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from deadletter import send
from deadletter.models import Queue
from deadletter.worker.options import Options
from deadletter.worker.process import LISTED, Worker
from deadletter.worker.registry import Handler, Registry
from tests.processes import Workers

pytestmark = pytest.mark.django_db(transaction=True)


def send_one_of_each() -> tuple[int, int, int, int]:
    """Return the ids of messages that succeed at once, in a transaction, later, and never."""
    Queue.objects.filter(name="default").update(max_attempts=2, cooldown=timedelta(0))
    return (
        send("sample.work", {}).pk,
        send("sample.async", {}, stream="s").pk,
        send("sample.work", {"fail": 1}).pk,
        send("sample.work", {"fail": 9}).pk,
    )


@pytest.mark.process
def test_every_message_and_every_traceback_is_shown_at_verbosity_two(workers: Workers) -> None:
    plain, streamed, late, never = send_one_of_each()

    worker = workers.drain("-v", 2)

    completed = worker.lines("message_completed")
    assert {line["message_id"]: line["attempt"] for line in completed} == {
        plain: 1,
        streamed: 1,
        late: 2,
    }
    assert {line["level"] for line in completed} == {"DEBUG"}
    assert [line["stream"] for line in completed if line["message_id"] == streamed] == ["s"]
    failed = worker.lines("message_failed")
    assert sorted(line["message_id"] for line in failed) == [late, never, never]
    assert {line["level"] for line in failed} == {"WARNING"}
    assert all("in work\n" in line["traceback"] for line in failed)


@pytest.mark.process
def test_only_a_death_has_its_traceback_otherwise(workers: Workers) -> None:
    *_others, never = send_one_of_each()

    worker = workers.drain()

    assert worker.lines("message_completed") == []
    assert len(worker.lines("message_failed")) == 3
    traced = [line for line in worker.lines() if "traceback" in line]
    assert [(line["event"], line["level"], line["message_id"]) for line in traced] == [
        ("message_poisoned", "ERROR", never)
    ]
    assert traced[0]["traceback"].endswith("RuntimeError: as asked, attempt 2")


def test_the_first_line_names_the_handlers_and_no_others(caplog) -> None:
    handlers = Registry()
    for name in ("orders.ship", "mail.send", "deadletter.timer"):
        handlers.add(Handler(name=name, function=print))
    caplog.set_level(logging.INFO, logger="deadletter")

    Worker(Options(name="here", drain=True), handlers=handlers).run()

    [started] = [record for record in caplog.records if record.event == "worker_started"]
    named = started.fields["handlers"].split(", ")
    assert {"orders.ship", "mail.send"} <= set(named)
    assert "sample.work" not in named
    assert not [name for name in named if name.startswith("deadletter.")]
    assert started.getMessage().endswith(f"queues all, handlers {started.fields['handlers']}")


def test_many_handlers_are_cut_with_a_count(caplog) -> None:
    handlers = Registry()
    for number in range(1_000):
        handlers.add(Handler(name=f"a.handler.{number:03}", function=print))
    caplog.set_level(logging.INFO, logger="deadletter")

    Worker(Options(name="here", drain=True), handlers=handlers).run()

    [started] = [record for record in caplog.records if record.event == "worker_started"]
    text = started.fields["handlers"]
    shown, _and, more = text.partition(" and ")
    assert len(shown) <= LISTED
    assert len(shown.split(", ")) + int(more.removesuffix(" more")) == len(handlers.all_names())
    assert started.getMessage().endswith(f"handlers {text}")
