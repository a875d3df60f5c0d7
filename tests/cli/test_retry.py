"""manage.py deadletter retry."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from deadletter import FailureReason, operations, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue
from deadletter.operations import acts
from tests.operations.records import dead, entries, failed, many_dead
from tests.sample.payloads import TYPED


def test_one_or_several_ids_are_retried(cli, clock, counts):
    first, second, other = dead(), dead(), dead()

    result = cli("retry", first.pk, second.pk, "--yes", "--by", "ann", "--why", "fixed")

    entry = AuditEntry.objects.get()
    assert (result.code, result.lines) == (0, ["retried 2 of 2", f"audit entry {entry.pk}"])
    assert PoisonRecord.objects.get() == other
    assert entries() == [("retry", "ann", "fixed", 2, 0, 0)]


def test_what_is_not_there_is_named_and_the_rest_is_done(cli, clock, counts):  # E16
    record, waiting = dead(), send("mail", delay=60)
    absent = waiting.id + 1_000

    result = cli("retry", record.pk, absent, waiting.id, "--yes")

    assert result.code == 1
    assert result.lines[:3] == [
        "retried 1 of 1",
        f"{absent}: there is no such poison record; it was retried or removed, or never was",
        f"{waiting.id}: there is no such poison record; the message of that id is scheduled",
    ]


def test_the_second_operator_is_told_that_it_is_done(cli, clock, counts):
    record = dead()
    assert cli("retry", record.pk, "--yes", "--by", "ann").code == 0
    Message.objects.update(available_at=clock.now + timedelta(hours=1))

    result = cli("retry", record.pk, "--yes", "--by", "bob")

    assert result.code == 1
    assert "there is no such poison record" in result.out
    assert entries() == [("retry", "ann", "", 1, 0, 0)]
    assert Message.objects.count() == 1


def test_messages_are_retried_by_their_own_ids_whether_dead_or_failed(cli, clock, counts):
    record, waiting = dead(), failed()

    result = cli("retry", "--message", record.message_id, waiting.pk, "--yes")

    assert (result.code, result.lines[0]) == (0, "retried 2 of 2")
    assert counts() == {"pending": 2}
    assert set(Message.objects.values_list("attempts", flat=True)) == {0}


@pytest.mark.parametrize("state", ["pending", "scheduled", "active"])
def test_what_was_never_tried_or_is_active_is_refused_by_its_state(cli, clock, counts, state):  # E8
    message = send("mail", delay=60 if state == "scheduled" else None)
    if state == "active":
        claim()

    result = cli("retry", "--message", message.id, "--yes")

    assert result.code == 1
    assert f"{message.id}: refused: message {message.id} is {state}" in result.out
    assert counts() == {state: 1}


def test_a_completed_message_is_in_no_queue(cli, clock):
    result = cli("retry", "--message", 999_999, "--yes")

    assert (result.code, result.lines) == (
        1,
        ["retried 0 of 0", "999999: is in no queue: completed, removed, or never sent"],
    )


def test_a_message_that_only_failed_cannot_be_changed_on_its_way(cli, clock, policy):
    policy("other")
    waiting = failed()

    result = cli("retry", "--message", waiting.pk, "--to-queue", "other", "--yes")

    assert result.code == 1
    assert "only a dead message can be retried with another queue, payload or rate" in result.out


@pytest.mark.parametrize(
    "selection",
    [
        ["--all"],
        ["--name", "mail"],
        ["--queue", "default", "--since", "2h", "--until", "2100-01-01"],
        ["--text", "BOO", "--reason", "unknown", "--exception", "UNKNOWN", "--kind", "message"],
    ],
)
def test_filters_and_all_retry_what_matches(cli, clock, counts, selection):
    records = [dead(), dead()]

    result = cli("retry", *selection, "--yes", "--format", "json")

    assert result.code == 0
    assert result.json == {
        "act": "retry",
        "dry_run": False,
        "matched": 2,
        "done": 2,
        "missing": [],
        "refused": 0,
        "reasons": {},
        "audit_entry": AuditEntry.objects.get().pk,
    }
    assert counts() == {"pending": len(records)}


def test_a_dry_run_shows_and_changes_nothing(cli, clock, counts):
    many_dead(12)

    result = cli("retry", "--name", "mail", "--limit", 8, "--dry-run")

    assert result.code == 0
    assert result.lines[-1] == "8 would be retried; nothing was changed"
    assert len(result.column("message")[:-1]) == 5
    assert "… and 3 more" in result.err
    assert counts() == {"dead": 12}
    assert not AuditEntry.objects.exists()


def test_nothing_matched_is_exit_code_1(cli, clock):
    dead()

    assert cli("retry", "--name", "none", "--yes").code == 1
    assert cli("retry", "--name", "none", "--dry-run").code == 1
    result = cli("retry", "--name", "none", "--yes", "--format", "json")
    assert (result.code, result.json["matched"]) == (1, 0)


def test_a_partly_refused_retry_is_exit_code_1_with_the_reason(cli, clock, counts):
    record = dead(key="k")
    dead()
    send("mail", key="k")

    result = cli("retry", "--all", "--yes")

    assert (result.code, result.lines[0]) == (1, "retried 1 of 2")
    assert result.lines[1].startswith(f"{record.pk}: refused: an unfinished message with key 'k'")


def test_it_goes_to_another_queue_at_a_rate(cli, clock, policy):
    policy("slow")
    for _ in range(3):
        dead()

    result = cli("retry", "--all", "--to-queue", "slow", "--rate", "0.5", "--yes")

    rows = Message.objects.order_by("pk")
    assert result.code == 0
    assert {row.queue.name for row in rows} == {"slow"}
    assert [row.available_at - clock.now for row in rows] == [
        timedelta(seconds=n) for n in (0, 2, 4)
    ]
    assert AuditEntry.objects.get().detail == {"queue": "slow", "rate": 0.5}


def test_a_payload_may_be_given_as_text_or_file(cli, clock, tmp_path):
    first, second = dead(payload={"to": 1}), dead(payload={"to": 1})
    file = tmp_path / "repaired.json"
    file.write_text('{"to": 3}')

    assert cli("retry", first.pk, "--payload", '{"to": 2}', "--yes").code == 0
    assert cli("retry", second.pk, "--payload", f"@{file}", "--yes").code == 0

    assert [row.payload for row in Message.objects.order_by("pk")] == [{"to": 2}, {"to": 3}]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("{to: 1}", "--payload: not JSON"),
        ("[" * 100_000, "--payload: not JSON"),
        ("@/no/such/file", "--payload: "),
        ('"\\u0000"', "the payload was refused: payload: the NUL character"),
        ("NaN", "the payload was refused"),
        ("[" * 70 + "]" * 70, "nested deeper than 64"),
    ],
)
def test_a_bad_payload_is_refused_before_anything_is_touched(cli, clock, counts, payload, problem):
    record = dead()

    result = cli("retry", record.pk, "--payload", payload, "--yes")

    assert (result.code, counts()) == (2, {"dead": 1})
    assert problem in result.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "name ids, --message ids, a filter, or --all"),
        (["1", "--all"], "ids and --all contradict each other"),
        (["1", "--name", "x"], "ids and a filter contradict each other"),
        (["1", "2", "--payload", "1"], "--payload replaces the payload of one id"),
        (["--all", "--payload", "1"], "--payload replaces the payload of one id"),
        (["1", "--limit", "1"], "--limit is for filters"),
        (["--queue", "defualt"], "there is no queue 'defualt'; did you mean default?"),
        (["--all", "--to-queue", "defalut"], "did you mean default?"),
        (["--queue", ""], "--queue: expected a value"),
        (["--since", "soon"], "--since: expected 2h, 3d or a time"),
        (["--reason", "luck"], "--reason: 'luck' is none of"),
        (["--text", "x" * 1_001], "--text: longer than"),
        (["--all", "--rate", "0"], "rate: expected 0.001 to 1,000,000 per second"),
        (["--all", "--rate", "fast"], "expected a number per second"),
        (["x"], "expected a positive whole number"),
        (["-1"], "expected a positive whole number"),
        (["9" * 30], "expected a positive whole number"),
        (["--all", "--database", "nowhere"], "there is no database 'nowhere'"),
    ],
)
def test_a_wrong_use_is_exit_code_2_and_changes_nothing(cli, clock, counts, arguments, problem):
    dead()

    result = cli("retry", *arguments, "--yes")

    assert (result.code, result.out) == (2, "")
    assert problem in result.err
    assert counts() == {"dead": 1}


def test_without_a_terminal_nothing_is_done_unasked(cli, clock, counts):
    result = cli("retry", dead().pk)

    assert (result.code, counts()) == (2, {"dead": 1})
    assert "Retry 1 poison record? There is no terminal: add --yes" in result.err


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 2), ("", 1, 2)])
def test_on_a_terminal_it_asks_with_the_number(cli, clock, answers, answer, code, left):
    dead()
    dead()
    answers(answer)

    result = cli("retry", "--all", "--rate", "5", "--format", "json")

    assert (result.code, PoisonRecord.objects.count()) == (code, left)
    assert "Retry 2 poison records at 5 per second? [y/N]" in result.err
    # The question does not get into what a script reads.
    assert result.out == "" if code else result.json["done"] == 2


def test_what_dies_while_the_question_is_open_is_not_touched(cli, clock, counts, monkeypatch):
    dead()
    late = []

    class Slow:
        def isatty(self):
            return True

        def readline(self):
            late.append(dead())
            return "y\n"

    monkeypatch.setattr("sys.stdin", Slow())
    result = cli("retry", "--all")

    assert result.lines[0] == "retried 1 of 1"
    assert list(PoisonRecord.objects.all()) == late


@pytest.mark.slow
def test_long_work_says_how_far_it_is(cli, clock):
    many_dead(2_500)

    result = cli("retry", "--all", "--yes", "--progress")

    assert (result.code, result.lines[0]) == (0, "retried 2,500 of 2,500")
    assert result.err.splitlines()[-1] == "2,500 of 2,500"
    assert cli("retry", "--all", "--yes").err == "nothing matches\n"


def test_poison_that_outlived_its_queue_can_be_rescued(cli, clock, policy):  # E20
    gone = policy("gone")
    record = dead(queue="gone")
    Queue.objects.filter(pk=gone.pk)._raw_delete("default")

    assert cli("list", "--queue", "gone").column("id") == [str(record.pk)]
    refused = cli("retry", "--queue", "gone", "--yes")
    assert refused.code == 1
    assert "queue 'gone' does not exist; create it or name another" in refused.out
    assert cli("retry", "--queue", "gone", "--to-queue", "default", "--yes").code == 0


def test_the_default_person_is_the_user_of_the_system(cli, clock, monkeypatch):
    monkeypatch.setenv("LOGNAME", "carla")
    first, second = dead(), dead()
    cli("retry", first.pk, "--yes")

    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    cli("retry", second.pk, "--yes")

    named, nameless = AuditEntry.objects.order_by("pk")
    assert named.by == "carla"
    assert nameless.by.startswith("uid ")


def test_all_failed_messages_of_a_queue_are_retried_now(cli, clock, counts, policy):  # E16, C20
    policy("other")
    for _ in range(3):
        failed()
    failed(queue="other")
    dead()
    later = send("mail", delay=60)

    dry = cli("retry", "--failed", "--queue", "default", "--dry-run")
    assert (dry.code, dry.lines[-1]) == (0, "3 would be retried; nothing was changed")
    few = cli("retry", "--failed", "--queue", "default", "--limit", 1, "--yes")
    assert few.lines[0] == "retried 1 of 1"
    result = cli("retry", "--failed", "--queue", "default", "--yes", "--by", "ann", "--why", "up")

    assert (result.code, result.lines[0]) == (0, "retried 2 of 2")
    assert counts() == {"pending": 3, "failed": 1, "scheduled": 1, "dead": 1}
    assert entries()[-1] == ("retry_now", "ann", "up", 2, 0, 0)
    assert Message.objects.get(pk=later.id).available_at > clock.now
    assert cli("retry", "--failed", "--queue", "default", "--yes").code == 1


@pytest.mark.parametrize(
    "arguments", [["1"], ["--all"], ["--message", "1"], ["--rate", "1"], ["--text", "x"]]
)
def test_failed_takes_filters_only(cli, clock, arguments):
    assert cli("retry", "--failed", "--yes", *arguments).code == 2


def test_failed_messages_are_retried_in_pieces(clock, monkeypatch, counts):
    monkeypatch.setattr(acts, "PIECE", 2)
    for _ in range(5):
        failed()
    heard: list[int] = []

    total = operations.retry_failed(operations.MessageFilter(name="mail"), progress=heard.append)

    assert (total.done, heard, counts()) == (5, [2, 4, 5], {"pending": 5})
    assert entries() == [("retry_now", "", "", 5, 0, 0)]


def test_what_show_hides_is_kept_when_its_output_is_edited(cli, clock, tmp_path):
    rows = [{"name": "Alice", "card": "4111"}, {"name": "Bob", "card": "5500"}]
    record = dead(payload={"to": 1, "token": "t", "rows": rows})
    shown = cli("show", record.pk, "--format", "json").json[0]["payload"]
    assert shown["token"] == "[redacted]"
    file = tmp_path / "repaired.json"
    file.write_text(json.dumps({**shown, "to": 2, "rows": shown["rows"][1:]}))

    result = cli("retry", record.pk, "--payload", f"@{file}", "--yes")

    assert result.code == 0
    assert Message.objects.get().payload == {"to": 2, "token": "t", "rows": rows[1:]}


@pytest.mark.parametrize("by", ["id", "message"])
def test_a_marker_that_cannot_be_matched_is_refused_by_its_path(cli, clock, counts, by):
    record = dead(payload={"rows": [{"name": "Alice", "card": "4111"}]})
    payload = json.dumps({"rows": [{"name": "Bob", "card": "[redacted]"}]})
    which = [record.pk] if by == "id" else ["--message", record.message_id]

    result = cli("retry", *which, "--payload", payload, "--yes")

    assert (result.code, counts()) == (2, {"dead": 1})
    assert "payload.rows[0].card: the hidden value for this placeholder is ambiguous" in result.err


def test_a_dry_run_shows_what_would_change_without_secrets(cli, clock, counts):
    record = dead(payload={"to": 1, "token": "4111"})
    arguments = ["retry", record.pk, "--payload", '{"to": 2, "token": "[redacted]"}', "--dry-run"]

    result = cli(*arguments)
    as_json = cli(*arguments, "--format", "json").json

    difference = ["  {", '-   "to": 1,', '+   "to": 2,', '    "token": "[redacted]"', "  }"]
    assert as_json["difference"] == difference
    assert [line for line in difference if line in result.lines] == difference
    assert "4111" not in result.out + result.err
    assert (result.code, counts()) == (0, {"dead": 1})


def test_a_dry_run_says_when_only_hidden_values_change(cli, clock, counts):
    record = dead(payload={"token": "4111"})

    result = cli("retry", record.pk, "--payload", '{"token": "5500"}', "--dry-run")

    assert "nothing but hidden values changes" in result.out
    assert "5500" not in result.out + result.err


def test_failed_messages_are_retried_by_their_reason(cli, clock, counts):
    down = failed(reason=FailureReason.TRANSPORT_UNAVAILABLE, error="no route to host")
    other = failed(reason=FailureReason.TIMEOUT_EXCEEDED, error="took too long")

    listed = cli("list", "--state", "failed", "--reason", "transport_unavailable")
    dry = cli("retry", "--failed", "--reason", "TRANSPORT-UNAVAILABLE", "--dry-run")
    result = cli("retry", "--failed", "--reason", "Transport_Unavailable", "--yes")

    assert listed.column("message") == [str(down.pk)]
    assert dry.lines[-1] == "1 would be retried; nothing was changed"
    assert "no route to host" in dry.out
    assert (result.code, result.lines[0]) == (0, "retried 1 of 1")
    assert counts() == {"pending": 1, "failed": 1}
    assert Message.objects.get(pk=other.pk).attempts == 1
    assert cli("retry", "--failed", "--reason", "bad_luck", "--yes").code == 2


def test_lists_of_failed_messages_show_reason_and_error(cli, clock):
    failed(reason=FailureReason.TRANSPORT_UNAVAILABLE, error="no route to host" + "!" * 9_000)
    send("mail", delay=60)

    table = cli("list", "--state", "failed")
    [row] = cli("list", "--state", "failed", "--format", "json").json
    [other] = cli("list", "--state", "scheduled", "--format", "json").json

    assert table.lines[0].split()[-2:] == ["reason", "error"]
    assert "transport_unavailable  no route to host!!!" in table.lines[1]
    assert (row["failure_reason"], len(row["error"])) == ("TRANSPORT_UNAVAILABLE", 200)
    assert (other["failure_reason"], other["error"]) == (None, None)


@pytest.mark.parametrize("which", [["--failed"], ["--message", "1"]])
def test_now_without_counting_from_0_again(cli, clock, counts, which):
    message = failed()
    if which[0] == "--message":
        which = ["--message", message.pk]

    result = cli("retry", *which, "--keep-attempts", "--yes")

    assert (result.code, counts()) == (0, {"pending": 1})
    assert Message.objects.get().attempts == 1
    assert AuditEntry.objects.get().detail == {"reset": False}


def test_the_dead_cannot_keep_their_count(cli, clock, counts):
    record = dead()

    for which in ([record.pk], ["--all"], ["--name", "mail"]):
        result = cli("retry", *which, "--keep-attempts", "--yes")
        assert (result.code, counts()) == (2, {"dead": 1})
        assert "--keep-attempts is for --failed and --message" in result.err
    assert cli("retry", "--message", record.message_id, "--keep-attempts", "--yes").code == 1
    assert counts() == {"dead": 1}


@pytest.fixture
def moved(clock, policy) -> list[Message]:
    """Three messages of "default" in its dead queue."""
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    for name in ("mail", "mail", "bill"):
        send(name, {"password": "s3cret", "to": 1})
    batch = claim()
    fail(batch.token, [Failure(id, error="boom", permanent=True) for id in batch.ids])
    return list(Message.objects.order_by("id"))


def test_messages_of_a_dead_queue_are_retried_by_either_id(cli, moved):
    first, second, _third = moved

    result = cli("retry", "--message", first.source_id, second.pk, "--yes", "--by", "ann")

    assert (result.code, result.lines[0]) == (0, "retried 2 of 2")
    back = Message.objects.filter(queue__name="default").values_list("id", flat=True)
    assert set(back) == {first.source_id, second.source_id}
    assert entries() == [("retry", "ann", "", 2, 0, 0)]


def test_a_dead_queue_is_retried_as_a_whole_or_by_name(cli, policy, moved):
    policy("other")

    dry = cli("retry", "--dead-queue", "dead", "--dry-run")
    bills = cli("retry", "--dead-queue", "dead", "--name", "bill", "--to-queue", "other", "--yes")
    rest = cli("retry", "--dead-queue", "dead", "--yes")

    assert dry.lines[-1] == "3 would be retried; nothing was changed"
    assert (bills.lines[0], rest.lines[0]) == ("retried 1 of 1", "retried 2 of 2")
    assert set(Message.objects.values_list("name", "queue__name")) == {
        ("bill", "other"),
        ("mail", "default"),
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--dead-queue", "nowhere"], "there is no queue 'nowhere'"),
        (["--dead-queue", "default", "--all"], "--dead-queue takes --name"),
        (["--dead-queue", "default", "--reason", "expired"], "--dead-queue takes --name"),
        (["--dead-queue", "default", "--rate", "0"], "rate: expected"),
    ],
)
def test_a_selection_that_a_dead_queue_has_not_is_a_usage_error(cli, clock, given, text):
    result = cli("retry", *given, "--yes")

    assert result.code == 2
    assert text in result.err


def test_a_payload_is_repaired_on_its_way_out_of_a_dead_queue(cli, moved):
    first = moved[0]
    payload = json.dumps({"password": "[redacted]", "to": 2})

    result = cli("retry", "--message", first.source_id, "--payload", payload, "--yes")

    assert result.code == 0
    assert Message.objects.get(pk=first.source_id).payload == {"password": "s3cret", "to": 2}


@pytest.mark.parametrize("which", [(), ("--dry-run",), ("--message",)])
def test_a_payload_is_checked_against_the_class_of_its_handler(
    cli, clock, counts, handles, monkeypatch, which
):
    record = dead("orders.ship", {"order": "x", "token": "4111"})
    monkeypatch.setattr(
        "deadletter.cli.retry.look_up_handlers",
        lambda: handles("orders.ship", print, payload=TYPED),
    )
    number = record.message_id if "--message" in which else record.pk

    bad = '{"order": "y", "token": "[redacted]"}'
    result = cli("retry", *which, number, "--payload", bad, "--yes")

    assert result.code == 2
    assert "the payload was refused: payload.order: expected int, got str" in result.err
    assert counts() == {"dead": 1}
    good = '{"order": 8, "token": "[redacted]"}'
    assert cli("retry", *which, number, "--payload", good, "--yes").code == 0


def test_a_hidden_value_that_does_not_match_is_not_printed(cli, clock, handles):
    record = dead("orders.ship", {"order": 1, "token": 4111})
    handles("orders.ship", print, payload=TYPED)

    result = cli("retry", record.pk, "--payload", '{"order": 2, "token": "[redacted]"}', "--yes")

    assert "payload.token: expected str, got int" in result.err
    assert "4111" not in result.err + result.out
