"""
A query that sorts by a time can use the index of that time.

What is selected of a time is made readable, and a query that sorts by a column which it selects
under its own name sorts by that expression: every row is read, whatever LIMIT says.
`tests.conftest.no_sort_by_what_is_selected` refuses such queries in every test.
"""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models import F

from deadletter.models import Instance, Message, PoisonRecord
from tests.operations.records import many_dead

pytestmark = pytest.mark.slow

TIMES = [
    (PoisonRecord, "poisoned_at"),
    (Instance, "updated_at"),
    (Message, "created_at"),
    (Message, "available_at"),
]


@pytest.mark.parametrize(("model", "name"), TIMES)
def test_a_time_that_is_selected_by_its_own_name_is_not_sorted_by(db, model, name):
    with pytest.raises(AssertionError, match="no index"):
        list(model.objects.order_by(name).values_list(name, flat=True))


@pytest.mark.parametrize(("model", "name"), TIMES)
def test_the_column_itself_is_sorted_by_where_the_time_has_another_name(db, model, name):
    rows = model.objects.order_by(name).values_list(F(name), "pk")

    assert f'ORDER BY "{model._meta.db_table}"."{name}" ASC' in str(rows.query)
    assert list(rows) == []


@pytest.mark.postgresql_only(reason="SQLite does not tell how many rows a statement read")
@pytest.mark.parametrize("order", ["poisoned_at", "-poisoned_at"])
def test_the_first_and_the_last_of_many_are_one_probe(db, order):
    many_dead(2_000, fingerprint="f")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE deadletter_poison")
    rows = PoisonRecord.objects.filter(fingerprint="f").order_by(order)

    plan = rows.values_list(F("poisoned_at"), "pk")[:1].explain(analyze=True)

    assert "Sort" not in plan
    assert "Index" in plan
