"""Times that cannot be read back are refused; rows that hold one take nothing else with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from deadletter import MessageRejected, Outgoing, operations, send, send_many, testing
from deadletter.durations import EARLIEST, LATEST
from deadletter.models import Message, PoisonRecord
from tests.operations.records import dead

pytestmark = pytest.mark.slow

EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))
TOO_FAR = [
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=EAST),
    datetime.max.replace(tzinfo=WEST),
    datetime.min.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=EAST),
    datetime.min.replace(tzinfo=WEST),
    LATEST + timedelta(microseconds=1),
    EARLIEST - timedelta(microseconds=1),
]
ZONES = ["UTC", "Pacific/Kiritimati", "America/New_York", "Etc/GMT+12"]
DAMAGE = {
    "postgresql": ["infinity", "-infinity", "0001-01-01", "10000-01-01", "0044-03-15 BC"],
    "sqlite": ["garbage", "", "2026-02-30 00:00:00", "0001-01-01 00:00:00", "5", "now", "\x01"],
}
DAMAGES = pytest.mark.parametrize("place", range(7))


def damage(place: int) -> str:
    texts = DAMAGE[connection.vendor]
    if place >= len(texts):
        pytest.skip("the other database can hold more")
    return texts[place]


@pytest.fixture(params=ZONES)
def zone(request, transactional_db) -> Iterator[str]:
    """The connection reads times in this zone: DATABASES[…]["TIME_ZONE"]."""

    def use(name: str | None) -> None:
        if connection.vendor == "postgresql":
            connection.close()
        connection.settings_dict["TIME_ZONE"] = name
        for cached in ("timezone", "timezone_name"):
            connection.__dict__.pop(cached, None)

    before = connection.settings_dict["TIME_ZONE"]
    use(request.param)
    yield request.param
    use(before)


@pytest.mark.parametrize("at", TOO_FAR, ids=str)
def test_a_time_that_cannot_be_read_back_is_refused(db, counts, at: datetime) -> None:
    with pytest.raises(MessageRejected, match=r"^at: "):
        send("mail", at=at)
    with pytest.raises(MessageRejected, match=r"^at: "):
        send_many([Outgoing("mail"), Outgoing("mail", at=at)])

    assert counts() == {}


@pytest.mark.parametrize("field", ["delay", "expires_in"])
@pytest.mark.parametrize("far", [1e12, timedelta.max, float("inf"), -1, timedelta.min])
def test_a_duration_that_is_too_long_is_refused(db, counts, field: str, far: Any) -> None:
    with pytest.raises(MessageRejected, match=f"^{field}: "):
        send("mail", **{field: far})

    assert counts() == {}


@pytest.mark.parametrize("at", [EARLIEST, LATEST], ids=str)
def test_what_is_accepted_is_read_back_in_every_zone(zone: str, at: datetime) -> None:
    own = send("mail", at=at)
    (other,) = send_many([Outgoing("mail", at=at)])
    send("mail", at=at, key="k")

    assert own.available_at == at
    assert set(Message.objects.values_list("available_at", flat=True)) == {at}
    assert Message.objects.get(pk=other).available_at == at


ODD = (
    "2026-01-01 24:00:00",
    "2026-01-01 24:30",
    "2026-01-0110:00:00",
    "2026-01-01  10:00:00",
    "2026-01-01T 10:00:00",
    "2026-01-01 10:00:00z",
    "2026-01-01 10:00:00.1234567890123456",
    "2026-01-01 10:00:00.",
    "2026-01-01 10:00:60",
    "2026-01-01 10:00:00+15:00",
    "2026-01-01 10:00:00 ",
    "2026-01-01 10:00:00\x00",
    "0001-01-03 00:00:00+14:00",
)


@pytest.mark.parametrize("text", ODD)
def test_what_sqlite_takes_for_a_time_and_python_does_not_is_read(db, text: str) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("sqlite only: PostgreSQL checks what a column holds")
    message = send("mail")
    put(message, "created_at", text)

    assert isinstance(Message.objects.get().created_at, datetime)


@pytest.mark.parametrize("text", ["2026-01-01 23:59:59.5", "2026-01-01T00:00:00", "2026-01-01"])
def test_what_both_take_for_a_time_is_read_as_it_is(db, text: str) -> None:
    message = send("mail")
    put(message, "created_at", text)

    expected = datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert Message.objects.get().created_at == expected


def test_datetime_max_stores_nothing_in_any_zone(zone: str) -> None:
    with pytest.raises(MessageRejected):
        send("mail", at=datetime.max.replace(tzinfo=UTC))

    assert Message.objects.count() == 0


def put(row: Any, column: str, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {row._meta.db_table} SET {column} = %s WHERE id = %s", [text, row.pk]
        )


def command(*arguments: object) -> Any:
    out = StringIO()
    call_command("deadletter", *map(str, arguments), "--format", "json", stdout=out)
    return json.loads(out.getvalue())


@DAMAGES
@pytest.mark.parametrize("column", ["created_at", "available_at", "expires_at", "released_at"])
def test_lists_pages_and_the_worker_live_beside_a_damaged_message(
    admin_client: Client, handles, column: str, place: int
) -> None:
    handles("mail", lambda message: message.created_at)
    bad = send("mail", 1, stream="s")
    send("mail", 2, stream="s")
    put(bad, column, damage(place))
    good = send("mail", 3)

    for page in ("message/", "message/?state=pending", "message/?state=scheduled", "queue/"):
        assert admin_client.get(f"/admin/deadletter/{page}").status_code == 200, page
    for page in ("", "message/streams/", f"message/{bad.pk}/change/"):
        assert admin_client.get(f"/admin/deadletter/{page}").status_code == 200, page
    assert len(command("show", "--message", bad.pk)) == 1
    assert operations.stats().total is not None
    assert operations.list_messages("pending") is not None
    testing.drain()

    assert not Message.objects.filter(pk=good.pk).exists()
    assert not PoisonRecord.objects.filter(message_id=good.pk).exists()


@DAMAGES
@pytest.mark.parametrize("column", ["poisoned_at", "original_created_at", "expires_at"])
def test_lists_and_pages_live_beside_a_damaged_record(
    admin_client: Client, db, column: str, place: int
) -> None:
    bad, good = dead(), dead()
    put(bad, column, damage(place))

    pages = ["", "poisonrecord/", "poisonrecord/records/", "poisonrecord/matrix/"]
    pages += [f"poisonrecord/{bad.pk}/{page}/" for page in ("change", "retry", "edit", "remove")]
    pages += ["poisonrecord/bulk/retry/", "poisonrecord/records/?fingerprint=" + bad.fingerprint]
    for page in pages:
        assert admin_client.get(f"/admin/deadletter/{page}").status_code == 200, page
    assert {row["id"] for row in command("list")} == {bad.pk, good.pk}
    assert command("show", bad.pk)[0]["id"] == bad.pk
    assert len(list(operations.export_poison(operations.PoisonFilter()))) == 2
    assert operations.list_groups()[0].count == 2

    assert operations.retry_poison([bad.pk, good.pk]).retried == [bad.pk, good.pk]
