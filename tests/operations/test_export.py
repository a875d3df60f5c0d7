"""What leaves the system: no secret, no formula, a trace of who took it."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import operations
from deadletter.models import AuditEntry, PoisonRecord
from deadletter.operations import PoisonFilter, export

from .records import dead, many_dead

SECRET = {"to": "ann", "Password": "s3cret", "card": {"number": 1}, "list": [{"api_token": "s3"}]}
SAFE = {
    "to": "ann",
    "Password": "[redacted]",
    "card": "[redacted]",
    "list": [{"api_token": "[redacted]"}],
}


def exported(**options) -> list[dict]:
    return [json.loads(line) for line in operations.export_poison(PoisonFilter(), **options)]


def as_csv(**options) -> list[dict[str, str]]:
    text = "".join(operations.export_poison(PoisonFilter(), format="csv", **options))
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_json_lines_have_every_column_and_no_secret(clock):
    record = dead("mail", SECRET, stream="s", error="two\nlines\u2028<script>")

    (row,) = exported()

    assert list(row) == list(export.COLUMNS)
    assert (row["id"], row["message_id"], row["stream"]) == (record.pk, record.message_id, "s")
    assert (row["payload"], row["last_error"]) == (SAFE, "two\nlines\u2028<script>")
    assert row["reason"] == "POISON_MESSAGE"
    assert row["poisoned_at"] == clock.now.isoformat()


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =1+1", "'  =1+1"),
        ("\t=1", "'\t=1"),
        ("\n=1", "'\n=1"),
        ("\r1", "'\r1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("a=1", "a=1"),
        ('say "hi", then', 'say "hi", then'),
    ],
)
def test_a_cell_that_begins_like_a_formula_is_text(clock, text, cell):
    record = dead(payload=text)
    PoisonRecord.objects.filter(pk=record.pk).update(last_error=text)

    (row,) = as_csv()

    assert (row["last_error"], row["payload"]) == (cell, cell)


def test_numbers_and_nothing_stay_what_they_are(clock):
    dead(payload=-5)

    (row,) = as_csv()

    assert (row["payload"], row["stream"], row["exception"]) == ("-5", "", "UNKNOWN")
    PoisonRecord.objects.update(exception="")
    assert as_csv()[0]["exception"] == ""


def test_without_permission_no_payload_leaves_or_is_even_read(clock):
    dead(payload=SECRET)

    with CaptureQueriesContext(connection) as asked:
        (row,) = exported(payloads=False)

    assert "payload" not in row
    selects = [query["sql"] for query in asked if '"deadletter_poison"' in query["sql"]]
    assert not [text for text in selects if "payload" in text.split(" FROM ")[0]]


def test_a_damaged_payload_is_hidden_when_a_secret_may_be_in_it(clock):
    first, second = dead(), dead()
    with connection.cursor() as cursor:
        for pk, text in ((first.pk, '{"password": "s3cret'), (second.pk, '{"to": "ann')):
            cursor.execute("UPDATE deadletter_poison SET payload = %s WHERE id = %s", [text, pk])

    assert [row["payload"] for row in exported()] == ["[redacted]", '{"to": "ann']


def test_the_rule_may_be_a_callable_and_may_fail(clock, settings):
    dead(payload={"iban": "DE1"})

    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": lambda value: {"keys": list(value)}}
    assert exported()[0]["payload"] == {"keys": ["iban"]}
    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": lambda value: 1 / 0}
    assert exported()[0]["payload"] == "[redacted: the rule raised ZeroDivisionError]"


def test_an_export_goes_in_pieces_and_is_written_down(clock, monkeypatch):
    monkeypatch.setattr(export, "PIECE", 10)
    many_dead(25)

    lines = operations.export_poison(PoisonFilter(name="mail"), by="ann", why="audit")
    assert not AuditEntry.objects.exists()
    first = [next(lines) for _ in range(11)]
    late = dead()

    assert AuditEntry.objects.get().done == 20
    rest = list(lines)
    entry = AuditEntry.objects.get()
    assert (len(first) + len(rest), entry.done, entry.act, entry.by) == (25, 25, "export", "ann")
    assert entry.detail == {"format": "jsonl", "payloads": True}
    assert str(late.pk) not in "".join(rest[-1:])[:20]


def test_an_unknown_format_is_refused_at_once(clock):
    with pytest.raises(ValueError, match="jsonl or csv"):
        operations.export_poison(PoisonFilter(), format="xls")
