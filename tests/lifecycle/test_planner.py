"""The planner uses only indexes for the queue, also in the transaction of a caller."""

from __future__ import annotations

import pytest
from django.db import ProgrammingError, connection, transaction

from deadletter.lifecycle.transaction import Transaction, in_transaction
from deadletter.sql import planner

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite's planner has no such settings"),
    pytest.mark.django_db(transaction=True),
]


def ways(_: Transaction | None = None) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('enable_seqscan'), current_setting('enable_sort'), "
            "current_setting('enable_mergejoin')"
        )
        return set(cursor.fetchone())


def test_the_queues_own_transaction_reads_by_index():
    assert in_transaction(ways) == {"off"}


def test_the_setting_ends_with_the_transaction():
    in_transaction(ways)

    assert ways() == {"on"}


def test_the_callers_transaction_is_left_as_it_was():
    with transaction.atomic():
        assert in_transaction(ways) == {"off"}
        assert ways() == {"on"}


def test_the_callers_transaction_is_left_as_it_was_when_the_work_fails():
    def work(tx: Transaction) -> None:
        assert ways() == {"off"}
        raise LookupError

    with transaction.atomic():
        with pytest.raises(LookupError):
            in_transaction(work)
        assert ways() == {"on"}


def test_settings_of_the_callers_own_come_back():
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = auto")
        in_transaction(ways)

        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('enable_sort'), "
                "current_setting('plan_cache_mode')"
            )
            assert cursor.fetchone() == ("off", "on", "auto")


def test_what_goes_wrong_at_the_beginning_is_named(monkeypatch):
    wrong = "SELECT set_config('no_such_thing', 'on', true)"
    monkeypatch.setattr(planner, "_by_index_within", lambda wait: wrong)

    with pytest.raises(ProgrammingError, match="no_such_thing"):
        in_transaction(ways)

    monkeypatch.undo()
    assert in_transaction(ways) == {"off"}
