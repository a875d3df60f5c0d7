"""manage.py deadletter export and import."""

from __future__ import annotations

import io
import json

import pytest

from deadletter.cli import transfer
from deadletter.models import AuditEntry, Message, PoisonRecord
from tests.operations.records import dead


@pytest.fixture
def exported(cli, clock, tmp_path):
    """Two records in a file, gone from here."""
    ids = [dead(payload={"to": n, "card": "4111"}).message_id for n in (1, 2)]
    path = tmp_path / "poison.jsonl"
    result = cli("export", path, "--reveal", "--by", "ann")
    assert (result.code, result.err) == (0, "2 exported\n")
    PoisonRecord.objects.all().delete()
    return path, ids


@pytest.mark.slow
def test_what_is_exported_is_imported_once(cli, exported):
    path, ids = exported

    first = cli("import", path, "--origin", "berlin", "--by", "ann", "--why", "the move")
    again = cli("import", path, "--origin", "berlin", "--format", "json")

    entry = AuditEntry.objects.get(act="import")
    assert first.lines == ["2 of 2 imported", f"audit entry {entry.pk}"]
    assert (entry.by, entry.why, entry.done) == ("ann", "the move", 2)
    assert again.code == 0
    assert again.json == {
        "act": "import",
        "dry_run": False,
        "rows": 2,
        "imported": [],
        "ignored": ids,
        "refused": {},
        "ids": {},
        "audit_entry": None,
    }
    assert [m.payload for m in Message.objects.order_by("pk")] == [
        {"to": 1, "card": "4111"},
        {"to": 2, "card": "4111"},
    ]
    assert AuditEntry.objects.get(act="export").detail["reveal"] is True


def test_a_dry_run_changes_nothing(cli, exported):
    path, _ids = exported

    result = cli("import", path, "--origin", "berlin", "--dry-run")

    assert result.lines == ["2 of 2 would be imported; nothing was changed"]
    assert not Message.objects.exists()


def test_rows_that_are_refused_are_named_and_the_others_imported(cli, clock, tmp_path):
    path = tmp_path / "rows.jsonl"
    good = {"source_id": 3, "name": "mail", "queue": "default"}
    deep = "[" * 100_000
    lines = ["{not json", json.dumps(good), deep, "", json.dumps({"name": "mail"})]
    path.write_text("\n".join(lines) + "\n")

    result = cli("import", path, "--origin", "x")

    assert result.code == 1
    assert result.lines[0] == "1 of 4 imported"
    assert result.lines[1].startswith("row 1: refused: row: not JSON:")
    assert result.lines[2].startswith("row 3: refused: row: not JSON:")
    assert result.lines[3].startswith("row 4: refused: source_id: expected 1 to")
    assert Message.objects.get().source_id == 3


def test_a_line_that_is_too_long_is_refused_alone(cli, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "LINE", 100)
    path = tmp_path / "rows.jsonl"
    good = json.dumps({"source_id": 3, "name": "mail", "queue": "default"})
    path.write_text("x" * 99 + "\n" + "y" * 250 + "\n" + good + "\n" + "z" * 100)

    result = cli("import", path, "--origin", "x", "--format", "json")

    assert result.json["imported"] == [3]
    assert result.json["refused"]["2"] == "row: longer than 100 characters"
    assert list(result.json["refused"]) == ["1", "2", "4"]


def test_rows_come_from_standard_input_too(cli, clock, monkeypatch):
    line = json.dumps({"source_id": 3, "name": "mail"})
    monkeypatch.setattr("sys.stdin", io.StringIO(line))

    result = cli("import", "-", "--origin", "x", "--queue", "default", "--progress")

    assert result.lines[0] == "1 of 1 imported"
    assert result.err == "1\n"


@pytest.mark.slow
def test_bad_questions_are_usage_errors(cli, clock, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")

    assert cli("import", tmp_path / "none", "--origin", "x").code == 2
    assert cli("import", path).code == 2
    assert "--origin: expected 1 to 200" in cli("import", path, "--origin", " ").err
    unknown = cli("import", path, "--origin", "x", "--queue", "defalt")
    assert (unknown.code, "did you mean default?" in unknown.err) == (2, True)
    path.write_text("")
    assert cli("import", path, "--origin", "x").code == 1


@pytest.mark.slow
def test_an_export_hides_secrets_and_takes_filters(cli, clock, policy):
    policy("tenant-a/mail")
    dead(payload={"card": "4111"}, queue="tenant-a/mail")
    dead()

    result = cli("export", "--queue", "tenant-a/*")
    table = cli("export", "--format", "csv")

    [row] = [json.loads(line) for line in result.lines]
    assert row["payload"] == {"card": "[redacted]"}
    assert (table.lines[0].split(",")[:2], len(table.lines)) == (["id", "message_id"], 3)
    assert table.err == "2 exported\n"


@pytest.mark.slow
def test_source_and_origin_are_in_every_listing(cli, exported):
    path, ids = exported
    cli("import", path, "--origin", "berlin")
    messages = cli("list", "--state", "pending", "--format", "json").json
    assert [(row["origin"], row["source_id"]) for row in messages] == [
        ("berlin", ids[0]),
        ("berlin", ids[1]),
    ]
    table = cli("list", "--state", "pending")
    assert table.column("source") == [f"berlin#{id}" for id in ids]
    shown = cli("show", "--message", messages[0]["message_id"]).out
    assert f"berlin#{ids[0]}" in shown

    cli("poison", messages[0]["message_id"], "--why", "a test", "--yes")

    [record] = cli("list", "--format", "json").json
    assert (record["origin"], record["source_id"]) == ("berlin", ids[0])
    assert cli("list").column("source") == [f"berlin#{ids[0]}"]
    assert f"berlin#{ids[0]}" in cli("show", record["id"]).out
    [row] = [json.loads(line) for line in cli("export").lines]
    assert (row["origin"], row["source_id"]) == ("berlin", ids[0])
