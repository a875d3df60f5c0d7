"""manage.py deadletter groups, group, audit and jobs."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from deadletter import operations
from deadletter.models import Act, AuditEntry, BulkJob, FailureGroup, GroupEvent
from deadletter.operations import PoisonFilter
from tests.operations.groups import group, hour, record, release, tag, worker

pytestmark = pytest.mark.django_db


def test_groups_are_listed_what_needs_a_person_first(cli, clock):
    group("aaaa", clock, state="resolved")
    group("bbbb", clock, state="regressed", owner="ann", last_release="2.7.0")
    record("bbbb", clock, 1, stream="s", halts=True)

    result = cli("groups")

    assert result.code == 0
    assert result.column("group") == ["bbbb", "aaaa"]
    assert result.column("is") == ["regressed", "resolved"]
    assert result.lines[1].split() == [
        "bbbb", "regressed", "ann", "4", "1", "1", "1", "0", "s", "ago", "60", "min", "ago",
        "2.7.0", "orders.ship", "shop.errors.Full:", "the", "warehouse", "is", "full",
    ]  # fmt: skip
    assert result.err == "1 regressed, 1 resolved\n"


def test_the_list_is_narrowed_by_each_option(cli, clock):
    group("aaaa", clock, state="acknowledged", owner="ann", name="mail.send", queue="mail")
    group("bbbb", clock, last_release="2.7.0")
    group("cccc", clock, state="muted")
    tag("aaaa", clock, "customer.id", "1041")

    def found(*options: str) -> list[str]:
        return [row["fingerprint"] for row in cli("groups", "--format", "json", *options).json]

    assert found("--state", "open") == ["bbbb", "aaaa"]
    assert found("--owner", "ann") == ["aaaa"]
    assert found("--unowned") == ["bbbb", "cccc"]
    assert found("--release", "2.7.0") == ["bbbb"]
    assert found("--queue", "mail") == ["aaaa"]
    assert found("--name", "mail.send") == ["aaaa"]
    assert found("--tag", "customer.id=1041") == ["aaaa"]
    assert found("--text", "mail") == ["aaaa"]
    limited = cli("groups", "--limit", "1")
    assert (len(limited.lines), limited.code) == (2, 0)
    assert "there are more than 1" in limited.err
    assert (cli("groups", "--name", "x").code, cli("groups", "--name", "x").err) == (
        1,
        "nothing matches\n",
    )


def test_json_of_a_list_keeps_its_keys(cli, clock):
    group("aaaa", clock)

    (row,) = cli("groups", "--format", "json").json

    assert set(row) == {
        "fingerprint", "name", "queue", "exception", "frame", "reason", "error", "failures",
        "deaths", "first_failed_at", "last_failed_at", "first_died_at", "last_died_at",
        "first_release", "last_release", "state", "state_at", "state_by", "muted_until",
        "muted_until_failures", "resolved_in", "owner", "ticket", "aliases", "records",
        "records_more", "in_dead_queues", "in_dead_queues_more", "halted", "halted_more",
    }  # fmt: skip
    assert row["reason"] == "HANDLER_EXCEPTION"


def test_a_group_is_shown_with_all_that_is_known(cli, clock):
    group("aaaa", clock, first_release="2.6.0", last_release="2.7.0", ticket="https://t.example/1")
    group("bbbb", clock, merged_into="aaaa")
    hour("aaaa", clock.now, "2.7.0", failures=5)
    release("2.7.0", clock, age=60)
    tag("aaaa", clock, "customer.id", "1041", 4)
    record("aaaa", clock, 1, payload={"order": 1, "kind": "x"}, stream="s", halts=True)
    record("aaaa", clock, 2, payload={"order": 2, "kind": "x"})
    worker("w1", clock, release="2.7.1", handlers=[["message", "mail.send"]])
    note = operations.write_note("aaaa", "the warehouse\nis full", by="ann")
    operations.write_note("aaaa", "call them", answers=note.note_id, by="bob")

    result = cli("group", "show", "aaaa", "--compare")

    assert result.code == 0
    assert result.lines[:4] == [
        "group aaaa",
        "  name:        orders.ship",
        "  cause:       shop.errors.Full",
        "  place:       shop/orders.py:ship",
    ]
    for line in (
        "  state:       new for 60 min",
        "  ticket:      https://t.example/1",
        "  dead now:    2 poison records",
        "  halts:       1: s of default",
        "  merged in:   bbbb",
        "  tag:         customer.id: 1041 (4)",
        "  advice:      No live worker knows the name orders.ship.",
        "  the warehouse is full",
        '  payload kind = "x"',
        "  payload order: 1 (1), 2 (1)",
        f"  0 s ago note {note.note_id} by ann",
        "    the warehouse",
        "    is full",
        "      call them",
        "  60 s ago release 2.7.0 began: 5 failures in it",
    ):
        assert line in result.lines
    (shown,) = cli("group", "show", "aaaa", "--compare", "--format", "json").json
    assert set(shown) == {
        "group", "merged", "series", "releases", "tags", "streams", "advice", "timeline",
        "comparison",
    }  # fmt: skip
    assert shown["timeline"][0]["replies"][0]["text"] == "call them"


def test_a_group_that_is_not_there_is_named_and_the_others_are_shown(cli, clock):
    group("aaaa", clock)

    result = cli("group", "show", "gone", "aaaa")

    assert (result.code, result.lines[0]) == (1, "group aaaa")
    assert result.err == "there is no group gone\n"


def test_each_act_is_done_and_audited(cli, clock):
    User.objects.create_user("ann")
    for name in ("aaaa", "bbbb"):
        group(name, clock)
    about = ("--by", "bob", "--why", "a reason")

    done = [
        cli("group", "ack", "aaaa", "bbbb", *about),
        cli("group", "mute", "aaaa", "--for", "2h", "--grows-by", "100", "--yes", *about),
        cli("group", "reopen", "aaaa", *about),
        cli("group", "assign", "aaaa", "--owner", "ann", *about),
        cli("group", "ticket", "aaaa", "--url", "https://t.example/1", *about),
        cli("group", "note", "aaaa", "--text", "looks like the API", *about),
        cli("group", "merge", "aaaa", "bbbb", "--yes", *about),
        cli("group", "split", "bbbb", "--yes", *about),
        cli("group", "resolve", "aaaa", "--in-release", "2.7.1", "--yes", *about),
    ]

    assert [(one.code, one.out) for one in done] == [
        (0, "acknowledged aaaa\nacknowledged bbbb\n"),
        (0, "muted aaaa\n"),
        (0, "reopened aaaa\n"),
        (0, "assigned aaaa\n"),
        (0, "linked aaaa\n"),
        (0, "wrote a note on aaaa\n"),
        (0, "merged bbbb\n"),
        (0, "split off bbbb\n"),
        (0, "resolved aaaa\n"),
    ]
    entries = AuditEntry.objects.order_by("id")
    assert [(entry.act, entry.by, entry.why) for entry in entries] == [
        (act, "bob", "a reason")
        for act in (
            "ack_group", "mute_group", "reopen_group", "assign_group", "ticket_group",
            "note_group", "merge_group", "split_group", "resolve_group",
        )
    ]  # fmt: skip
    row = FailureGroup.objects.get(fingerprint="aaaa")
    assert (row.state, row.resolved_in, row.owner, row.ticket) == (
        "resolved", "2.7.1", "ann", "https://t.example/1",
    )  # fmt: skip
    cli("group", "assign", "aaaa", "--nobody")
    cli("group", "ticket", "aaaa", "--no-ticket")
    row.refresh_from_db()
    assert (row.owner, row.ticket) == ("", "")


def test_refused_and_missing_groups_are_named_and_exit_1(cli, clock):
    group("aaaa", clock, state="resolved")

    result = cli("group", "ack", "aaaa", "gone")
    as_json = cli("group", "ack", "aaaa", "gone", "--format", "json")

    assert (result.code, result.lines) == (1, [
        "aaaa: refused: group aaaa is resolved; reopen it first", "there is no group gone",
    ])  # fmt: skip
    assert as_json.json == {
        "act": "ack", "dry_run": False, "done": [], "missing": ["gone"],
        "refused": {"aaaa": "group aaaa is resolved; reopen it first"}, "note": None,
        "audit_entry": AuditEntry.objects.order_by("-id")[0].pk,
    }  # fmt: skip


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(cli, clock):
    group("aaaa", clock)
    group("bbbb", clock, state="resolved")

    result = cli("group", "resolve", "aaaa", "bbbb", "--dry-run")

    assert (result.code, result.lines) == (1, [
        "aaaa would be done; nothing was changed",
        "bbbb: refused: group bbbb is resolved already",
    ])  # fmt: skip
    assert FailureGroup.objects.get(fingerprint="aaaa").state == "new"
    assert not AuditEntry.objects.exists()
    assert not GroupEvent.objects.exists()


def test_what_makes_a_group_quiet_is_asked_for(cli, clock, answers):
    group("aaaa", clock)
    refused = cli("group", "mute", "aaaa")
    answers("n")
    denied = cli("group", "mute", "aaaa")
    answers("y")
    done = cli("group", "mute", "aaaa")

    assert (refused.code, denied.code, done.code) == (2, 1, 0)
    assert "There is no terminal: add --yes" in refused.err
    assert "Mute: aaaa? [y/N]" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["ack", "aaaa", "--for", "2h"],
        ["mute", "aaaa", "--owner", "ann", "--yes"],
        ["mute", "aaaa", "--for", "2h", "--until", "2036-01-01", "--yes"],
        ["mute", "aaaa", "--until", "2001-01-01", "--yes"],
        ["mute", "aaaa", "--for", "400d", "--yes"],
        ["assign", "aaaa"],
        ["assign", "aaaa", "--owner", "nobody"],
        ["assign", "aaaa", "--owner", "ann", "--nobody"],
        ["ticket", "aaaa"],
        ["ticket", "aaaa", "--url", "javascript:alert(1)"],
        ["note", "aaaa"],
        ["note", "aaaa", "bbbb", "--text", "x"],
        ["note", "aaaa", "--text", "x", "--answers", "7"],
        ["merge", "aaaa"],
        ["merge", "aaaa", "aaaa", "--yes"],
        ["merge", "gone", "aaaa", "--yes"],
        ["groups"],
    ],
)
def test_a_wrong_use_is_exit_code_2(cli, clock, arguments):
    group("aaaa", clock)
    group("bbbb", clock)

    assert cli("group", *arguments).code == 2
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "options", [["--tag", "x"], ["--name", ""], ["--state", "old"], ["--owner", "a", "--unowned"]]
)
def test_a_wrong_filter_is_exit_code_2(cli, clock, options):
    assert cli("groups", *options).code == 2


def test_hostile_text_reaches_no_terminal(cli, clock):
    hostile = "\x1b[2J\u202egnp.exe"
    group("aaaa", clock, name=hostile, error=hostile, owner=hostile, last_release=hostile,
          first_release=hostile, ticket=hostile)  # fmt: skip
    tag("aaaa", clock, hostile, hostile)
    operations.write_note("aaaa", hostile, by=hostile)

    outputs = [cli("groups").out, cli("group", "show", "aaaa").out, cli("audit").out]

    for out in outputs:
        assert out
        assert not {"\x1b", "\u202e"} & set(out)


def test_the_audit_is_listed_and_narrowed(cli, clock):
    group("aaaa", clock)
    operations.acknowledge_group("aaaa", by="ann", why="seen")
    clock.advance(7_200)
    operations.reopen_group("aaaa", by="bob")

    whole = cli("audit")

    assert whole.lines[1].split() == [
        str(AuditEntry.objects.order_by("-id")[0].pk), "0", "s", "ago", "bob", "reopen_group", "1",
        "0", "-", 'fingerprints=["aaaa"]', "-",
    ]  # fmt: skip
    assert whole.lines[2].endswith("seen")

    def acts(*options: str) -> list[str]:
        return [entry["act"] for entry in cli("audit", "--format", "json", *options).json]

    assert acts() == ["reopen_group", "ack_group"]
    assert acts("--by", "ann") == ["ack_group"]
    assert acts("--act", "reopen_group") == ["reopen_group"]
    assert acts("--since", "1h") == ["reopen_group"]
    assert acts("--until", "1h") == ["ack_group"]
    assert len(cli("audit", "--limit", "1").lines) == 2
    assert (cli("audit", "--by", "eve").code, cli("audit", "--act", "x").code) == (1, 2)
    (entry,) = cli("audit", "--by", "ann", "--format", "json").json
    assert set(entry) == {
        "id", "at", "by", "act", "why", "selection", "detail", "done", "missing", "refused",
        "succeeded", "died_same", "died_other", "open",
    }  # fmt: skip
    assert (entry["act"], entry["why"], entry["done"]) == ("ack_group", "seen", 1)


def test_jobs_show_their_progress_and_are_controlled(cli, clock):
    for number in range(4):
        record("aaaa", clock, number + 1)
    wanted = PoisonFilter(fingerprint="aaaa").fixed("default")
    job = operations.start_job(Act.REMOVE, wanted, total=4, by="ann")
    BulkJob.objects.filter(pk=job.pk).update(done=1, refused=1)

    (shown,) = cli("jobs", "--format", "json").json

    assert (shown["id"], shown["act"], shown["state"], shown["percent"]) == (
        job.pk, "remove", "running", 50,
    )  # fmt: skip
    assert cli("jobs").column("%") == ["50"]
    assert cli("jobs", "pause", str(job.pk), "--by", "bob").column("is") == ["paused"]
    assert cli("jobs", "--state", "running").code == 1
    assert cli("jobs", "resume", str(job.pk)).column("is") == ["running"]
    assert cli("jobs", "cancel", str(job.pk)).column("is") == ["cancelled"]
    over = cli("jobs", "resume", str(job.pk))
    assert (over.code, over.err) == (
        1,
        f"job {job.pk} is cancelled; it cannot be changed any more\n",
    )
    for wrong in (["pause"], ["pause", "999"], ["list", "1"], ["pause", "1", "--state", "done"]):
        assert cli("jobs", *wrong).code == 2
