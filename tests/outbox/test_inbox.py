"""The inbox: each message once, in one transaction with the work."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from deadletter import MessageRejected, inbox
from deadletter.lifecycle import sweep
from deadletter.models import InboxMessage, Queue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_is_new_once_for_each_consumer():
    seen = []
    for consumer in ("billing", "billing", "mail"):
        with inbox(consumer, "17") as is_new:
            seen.append(is_new)

    assert seen == [True, False, True]
    assert InboxMessage.objects.count() == 2


def test_work_that_fails_is_undone_and_may_be_repeated():
    def work() -> None:
        with inbox("billing", "17"):
            Queue.objects.create(name="work")
            raise LookupError

    with pytest.raises(LookupError):
        work()

    with inbox("billing", "17") as is_new:
        assert is_new
    assert not Queue.objects.filter(name="work").exists()


def test_it_is_part_of_the_callers_transaction():
    with transaction.atomic():
        with inbox("billing", "17") as is_new:
            assert is_new
        transaction.set_rollback(True)

    assert InboxMessage.objects.count() == 0


@pytest.mark.postgresql_only(reason="SQLite has one writer")
def test_a_second_process_waits_for_the_first():
    answers, entered = [], threading.Event()

    def second() -> None:
        entered.set()
        try:
            with inbox("billing", "17") as is_new:
                answers.append(is_new)
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with inbox("billing", "17"):
        thread.start()
        entered.wait()
        thread.join(0.2)
        waited = list(answers)
    thread.join()

    assert (waited, answers) == ([], [False])


@pytest.mark.parametrize(("consumer", "id"), [("", "1"), ("a b", "1"), ("a", ""), ("a", "x" * 201)])
def test_what_cannot_be_stored_is_refused(consumer, id):
    with pytest.raises(MessageRejected), inbox(consumer, id):
        pytest.fail("entered")

    assert InboxMessage.objects.count() == 0


def test_old_rows_are_swept(clock, settings):
    settings.DEADLETTER = {**settings.DEADLETTER, "INBOX_KEPT": "2d"}
    with inbox("billing", "old"):
        pass
    clock.advance(timedelta(days=2).total_seconds())
    with inbox("billing", "new"):
        pass

    swept = sweep()

    assert swept.inbox == 1
    assert InboxMessage.objects.get().message_id == "new"
