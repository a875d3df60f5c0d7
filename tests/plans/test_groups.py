"""
Pages of failure groups read what they show by index: sizes of groups, and the acts on one.

20,000 poison records in fifty groups, and 20,000 messages of fifty acts that touched them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from deadletter.models import AuditEntry
from deadletter.operations import list_group_acts
from deadletter.operations.failure_groups import read_sizes
from deadletter.testing import frozen_clock

from .conftest import (
    NOW,
    POISON,
    SERIES,
    Seen,
    adapted,
    assert_bounded,
    forget_statistics,
    run,
    watched,
)

pytestmark = pytest.mark.slow

N = 20_000
#: Two groups of 400 records, and as many that halt; on SQLite steps, ten for a row.
ROWS_OF_TWO_GROUPS = 10 * N // 50 + 3_000

AUDITED = """
    INSERT INTO deadletter_audited_message (entry_id, message_id, fingerprint, is_open, outcome)
    SELECT %(first)s + n %% 50, n, 'f' || (n %% 25), {false}, 1
      FROM {series}
"""


@pytest.fixture(scope="module", params=["analysed", "never analysed"])
def audited(request, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    series = SERIES[connection.vendor]
    false = "false" if connection.vendor == "postgresql" else "0"
    with django_db_blocker.unblock():
        forget_statistics()
        entries = [
            AuditEntry.objects.create(at=NOW, act="retry", done=N // 50, succeeded=N // 50)
            for _ in range(50)
        ]
        given = {"n": N, "now": adapted(NOW), "first": entries[0].pk}
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(POISON.format(series=series, false=false), given)
            cursor.execute(AUDITED.format(series=series, false=false), given)
        if request.param == "analysed":
            run("ANALYZE")
        yield
        run("DELETE FROM deadletter_audited_message")
        run("DELETE FROM deadletter_audit")
        run("DELETE FROM deadletter_poison")
        forget_statistics()


@pytest.fixture
def seen(audited: None, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Seen]]:
    with frozen_clock(NOW), watched(monkeypatch) as found:
        yield found


def test_the_size_of_a_group_is_a_range_of_its_index(seen):
    sizes = read_sizes(["f1", "f2", "gone"], using=connection.alias)

    assert sizes == {"f1": (400, 0, 0), "f2": (400, 0, 0), "gone": (0, 0, 0)}
    assert_bounded(seen, "read_group_sizes", rows=ROWS_OF_TWO_GROUPS)
    assert "deadletter_poison_group" in seen["read_group_sizes"].indexes


def test_the_acts_on_a_group_are_one_probe_each(seen):
    acts = list_group_acts(["f1"], limit=10)

    # Each act touched two groups with 400 messages each, of which two acts had one.
    assert [act.messages for act in acts] == [400, 400]
    assert seen["read_group_acts"].indexes == {"deadletter_audited_group"}
    assert_bounded(seen, "read_group_acts", rows=1_000)
