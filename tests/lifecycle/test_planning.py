"""What is the planner allowed? Only indexes, in a transaction of the queue's own."""

from __future__ import annotations

import pytest
from django.db import ProgrammingError, connection, transaction

from deadletter.lifecycle import transaction as beginning
from deadletter.lifecycle.transaction import Transaction, in_transaction

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
        assert in_transaction(ways) == {"on"}
        assert ways() == {"on"}


def test_what_goes_wrong_at_the_beginning_is_named(monkeypatch):
    wrong = "SELECT set_config('no_such_thing', 'on', true)"
    monkeypatch.setattr(beginning, "_by_index_within", lambda wait: wrong)

    with pytest.raises(ProgrammingError, match="no_such_thing"):
        in_transaction(ways)

    monkeypatch.undo()
    assert in_transaction(ways) == {"off"}
