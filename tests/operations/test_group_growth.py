"""Which causes of death are new, and which grow the fastest."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter.operations import growth
from deadletter.operations.growth import growing

from .records import many_dead


@pytest.fixture
def died(clock):
    ids = iter(range(1, 10**6, 1_000))

    def die(fingerprint: str, *ages: float, each: int = 1, **fields) -> None:
        """Let `each` messages of a group die so many hours ago."""
        for age in ages:
            many_dead(
                each,
                first=10**6 + next(ids),
                fingerprint=fingerprint,
                poisoned_at=clock.now - timedelta(hours=age),
                **fields,
            )

    return die


def test_the_newest_began_last_and_the_fastest_die_most_in_two_hours(died):
    died("steady", 30, 20, 10, 0.5)
    died("storm", 5, 1.5, 0.2, each=3)
    died("fresh", 0.1)
    died("over", 40, 26)

    found = growing()

    assert [group.fingerprint for group in found.newest] == ["fresh", "storm"]
    assert [group.fingerprint for group in found.fastest] == ["storm", "fresh", "steady"]
    storm = found.fastest[0]
    assert storm.hours == (0,) * 18 + (3,) + (0,) * 3 + (3, 3)
    assert (storm.day, storm.capped) == (9, False)


def test_an_hour_is_counted_up_to_a_limit(died, monkeypatch):
    monkeypatch.setattr(growth, "COUNTED", 2)
    died("storm", 0.5, each=5)

    (storm,) = growing().fastest

    assert storm.hours[-1] == 3
    assert (storm.day, storm.capped) == (2, True)


def test_it_takes_four_statements_however_many_groups_there_are(died):
    for n in range(6):
        died(f"group-{n}", 0.5)

    with CaptureQueriesContext(connection) as queries:
        found = growing(limit=4)

    assert (len(found.newest), len(found.fastest)) == (4, 4)
    assert len(queries) == 4


def test_without_poison_there_is_nothing(db):
    assert growing() == growth.Growing()
