"""Many records at once: what is executed is what was shown, and the result names real counts."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core import signing
from django.core.management import call_command
from django.test import Client

from deadletter import operations
from deadletter.admin.cli_hint import command_for
from deadletter.admin.poison import plan
from deadletter.models import AuditEntry, BulkJob, Message, PoisonRecord, Queue

from ..conftest import url


def ask(browser: Client, act: str = "retry", **data):
    return browser.post(url("poisonrecord", "bulk", act), data)


def signed_plan(question: Any) -> str:
    """Return the plan that the form of a question carries."""
    return str(dict(question.context["question"].hidden)["plan"])


def confirm(browser: Client, question, act: str = "retry", **more):
    data = {"plan": signed_plan(question), **more}
    return browser.post(url("poisonrecord", "bulk", act), data, follow=True)


def test_a_selection_is_shown_and_nothing_is_done_yet(
    admin_client: Client, poisoned, counts
) -> None:
    first, second, _third = poisoned("a"), poisoned("b"), poisoned("c")

    question = ask(admin_client, scope="selected", ids=[first.pk, second.pk])

    html = question.content.decode()
    assert "2 messages" in html
    assert f"a</bdi> #{first.message_id}" in html
    assert f"b</bdi> #{second.message_id}" in html
    assert "c</bdi> #" not in html
    assert f"manage.py deadletter retry {first.pk} {second.pk} --why" in html
    assert counts() == {"dead": 3}


def test_a_confirmed_selection_is_retried_and_counted(login, poisoned, counts) -> None:
    first, second, third = poisoned(), poisoned(), poisoned()
    browser = login("view_poisonrecord", "retry_poison")

    question = ask(browser, scope="selected", ids=[first.pk, second.pk])
    html = confirm(browser, question, why="fixed").content.decode()

    assert "Retried 2 messages." in html
    assert counts() == {"pending": 2, "dead": 1}
    assert PoisonRecord.objects.get() == third
    audit = AuditEntry.objects.get()
    assert (audit.by, audit.why, audit.done) == ("operator", "fixed", 2)
    assert LogEntry.objects.count() == 2


def test_a_selection_of_nothing_is_not_everything(admin_client: Client, poisoned, counts) -> None:
    poisoned()

    for data in ({"scope": "selected"}, {"scope": "selected", "ids": ["x", "9" * 40]}):
        response = admin_client.post(url("poisonrecord", "bulk", "remove"), data, follow=True)
        assert "Nothing matches" in response.content.decode()
    assert counts() == {"dead": 1}


def test_all_that_match_are_retried_whatever_is_ticked(
    admin_client: Client, poisoned, counts
) -> None:
    one, _two = poisoned("mail"), poisoned("mail")
    other = poisoned("other")

    question = ask(admin_client, scope="all", name="mail", ids=[one.pk])
    confirm(admin_client, question)

    assert counts() == {"pending": 2, "dead": 1}
    assert PoisonRecord.objects.get() == other


def test_what_dies_between_the_question_and_the_answer_is_not_touched(
    admin_client: Client, poisoned, counts
) -> None:
    poisoned(), poisoned()
    question = ask(admin_client, scope="all", name="mail")
    newcomer = poisoned()

    html = confirm(admin_client, question).content.decode()

    assert "Retried 2 messages." in html
    assert PoisonRecord.objects.get() == newcomer
    assert counts() == {"pending": 2, "dead": 1}


def test_what_is_gone_by_then_is_told(admin_client: Client, poisoned, counts) -> None:
    first, _second = poisoned(), poisoned()
    question = ask(admin_client, scope="all")
    operations.retry_poison(first.pk, by="ann")

    html = confirm(admin_client, question).content.decode()

    assert "Retried 1 message." in html
    assert "1 record no longer exists: it was already retried or removed." in html
    assert counts() == {"pending": 2}


def test_the_same_answer_twice_is_one_retry(admin_client: Client, poisoned, counts) -> None:
    poisoned()
    question = ask(admin_client, scope="all")

    confirm(admin_client, question)
    html = confirm(admin_client, question).content.decode()

    assert "1 record no longer exists" in html
    assert counts() == {"pending": 1}


def test_a_plan_that_was_tampered_with_is_refused(admin_client: Client, poisoned, counts) -> None:
    record = poisoned()
    question = ask(admin_client, scope="selected", ids=[record.pk])
    signed = signed_plan(question)
    forged = signing.dumps({"act": "retry", "ids": [record.pk]}, salt="another", compress=True)

    for changed in (signed[:-1] + ("a" if signed[-1] != "a" else "b"), forged, "", "x:y:z"):
        response = admin_client.post(url("poisonrecord", "bulk", "retry"), {"plan": changed})
        assert response.status_code == 400
    other_act = admin_client.post(url("poisonrecord", "bulk", "remove"), {"plan": signed})
    assert other_act.status_code == 400
    assert counts() == {"dead": 1}


def test_a_plan_of_somebody_else_is_refused(admin_client: Client, poisoned, counts) -> None:
    record = poisoned()
    question = ask(admin_client, scope="selected", ids=[record.pk])
    other = Client()
    other.force_login(User.objects.create_superuser("ann"))

    response = other.post(url("poisonrecord", "bulk", "retry"), {"plan": signed_plan(question)})

    assert response.status_code == 400
    assert counts() == {"dead": 1}


def test_a_question_that_is_too_old_is_asked_again(
    admin_client: Client, poisoned, counts, monkeypatch
) -> None:
    poisoned()
    question = ask(admin_client, scope="all")
    monkeypatch.setattr(plan, "GOOD_FOR", -1)

    html = confirm(admin_client, question).content.decode()

    assert "Nothing was done" in html
    assert counts() == {"dead": 1}


def test_a_retry_at_a_rate_and_into_a_queue(admin_client: Client, poisoned, counts) -> None:
    Queue.objects.create(name="slow")
    poisoned(), poisoned(), poisoned()
    question = ask(admin_client, scope="all")

    confirm(admin_client, question, rate="0.01", queue="slow")

    assert counts() == {"pending": 1, "scheduled": 2}
    assert set(Message.objects.values_list("queue__name", flat=True)) == {"slow"}


@pytest.mark.parametrize("terms", [{"rate": "0"}, {"rate": "nan"}, {"rate": "x"}, {"queue": "no"}])
def test_terms_that_make_no_sense_are_asked_again(
    admin_client: Client, poisoned, counts, terms
) -> None:
    poisoned()
    question = ask(admin_client, scope="all")

    response = confirm(admin_client, question, **terms)

    assert response.context["form"].errors
    assert counts() == {"dead": 1}


def test_a_group_can_be_tried_with_a_few_first(admin_client: Client, poisoned, counts) -> None:
    ids = [poisoned().pk for _ in range(3)]
    fingerprint = PoisonRecord.objects.get(pk=ids[0]).fingerprint

    question = admin_client.get(
        url("poisonrecord", "bulk", "retry"), {"fingerprint": fingerprint, "first": "2"}
    )
    confirm(admin_client, question)

    assert counts() == {"pending": 2, "dead": 1}
    assert PoisonRecord.objects.get().pk == ids[2]


def test_refusals_are_told_one_by_one(admin_client: Client, poisoned, counts) -> None:
    from deadletter import send

    poisoned(key="k"), poisoned()
    send("mail", key="k")
    question = ask(admin_client, scope="all")

    html = confirm(admin_client, question).content.decode()

    assert "Retried 1 message." in html
    assert "was not retried: an unfinished message with key" in html
    assert counts() == {"pending": 2, "dead": 1}


def test_a_removal_of_many(login, poisoned, counts) -> None:
    poisoned(), poisoned()
    browser = login("view_poisonrecord", "remove_poison")

    question = ask(browser, "remove", scope="all")
    html = confirm(browser, question, "remove", why="old").content.decode()

    assert "This cannot be undone" in question.content.decode()
    assert "Removed 2 messages for good." in html
    assert counts() == {}


def test_a_bad_filter_is_no_plan(admin_client: Client, poisoned, counts) -> None:
    poisoned()

    response = admin_client.post(
        url("poisonrecord", "bulk", "remove"), {"scope": "all", "nmae": "x"}, follow=True
    )

    assert "There is no filter “nmae”" in response.content.decode()
    assert counts() == {"dead": 1}


def test_more_than_can_be_done_at_once_becomes_a_job(
    admin_client: Client, poisoned, counts, monkeypatch
) -> None:
    monkeypatch.setattr(plan, "AT_ONCE", 2)
    for _ in range(3):
        poisoned()
    question = ask(admin_client, scope="all", name="mail")
    newcomer = poisoned()

    response = confirm(admin_client, question, why="deployed", rate="5")
    again = confirm(admin_client, question, why="deployed", rate="5")

    job = BulkJob.objects.get()
    assert response.redirect_chain[-1][0] == url("poisonrecord", "job", job.pk)
    assert "already been started" in again.content.decode()
    assert (job.total, job.last_id) == (3, newcomer.pk - 1)
    assert job.entry.selection == {"name": "mail", "up_to": newcomer.pk - 1}
    assert (job.entry.by, job.entry.why, job.entry.detail) == ("admin", "deployed", {"rate": 5.0})
    assert LogEntry.objects.get().content_type.model == "bulkjob"
    assert counts() == {"pending": 1, "dead": 4}


def export(browser: Client, **data):
    response = browser.post(url("poisonrecord", "export"), data)
    assert response.status_code == 200
    assert response.streaming
    return b"".join(response.streaming_content).decode()


def test_an_export_as_json_lines_is_redacted(admin_client: Client, poisoned) -> None:
    one = poisoned(payload={"to": 1, "token": "t0p"})
    poisoned("other")

    lines = export(admin_client, format="jsonl", scope_of_export="all", name="mail").splitlines()

    (row,) = [json.loads(line) for line in lines]
    assert row["id"] == one.pk
    assert row["payload"] == {"to": 1, "token": "[redacted]"}
    assert "Exported poison as jsonl" in LogEntry.objects.get().change_message
    audit = AuditEntry.objects.get()
    assert (audit.act, audit.by, audit.done) == ("export", "admin", 1)


def test_an_export_as_csv_runs_no_formula(admin_client: Client, poisoned) -> None:
    one, _two = poisoned(error="=cmd()", stream="@x"), poisoned()

    text = export(admin_client, format="csv", scope_of_export="selected", ids=[one.pk])

    header, row = list(csv.reader(io.StringIO(text)))
    assert row[header.index("last_error")] == "'=cmd()"
    assert row[header.index("stream")] == "'@x"


def test_an_export_leaves_payloads_out_for_those_who_may_not_see_them(login, poisoned) -> None:
    poisoned(payload={"iban": "DE02"})

    text = export(login("view_poisonrecord"), format="jsonl", scope_of_export="all")

    assert "payload" not in json.loads(text)
    assert "DE02" not in text


def test_an_export_by_get_is_refused(admin_client: Client, poisoned) -> None:
    poisoned()

    assert admin_client.get(url("poisonrecord", "export")).status_code == 405
    assert not LogEntry.objects.exists()


def test_a_command_to_copy_does_the_same(admin_client: Client, poisoned, counts) -> None:
    """What a page offers to copy is understood by the command, whatever is in it."""
    Queue.objects.create(name="other")
    hostile = 'it\'s $(rm) "here"; --all'
    first, second = poisoned(stream=hostile), poisoned(queue="other")
    pages = {
        url("poisonrecord", "retry", first.pk): {first.pk},
        url("poisonrecord", "remove", second.pk): {second.pk},
        url("poisonrecord", "bulk", "retry") + f"?ids={first.pk}&ids={second.pk}": {
            first.pk,
            second.pk,
        },
    }

    for page in pages:
        words = shlex.split(admin_client.get(page).context["command"])
        assert words[:2] == ["manage.py", "deadletter"]
        call_command(*words[1:], "--dry-run", "--yes")
    wanted = operations.PoisonFilter(
        stream=hostile, reason=2, since=first.poisoned_at, up_to=second.pk
    )
    words = shlex.split(command_for("remove", wanted, why="…"))
    out = io.StringIO()
    call_command(*words[1:], "--yes", stdout=out)

    assert counts() == {"dead": 1}
    assert PoisonRecord.objects.get() == second
    assert command_for("retry", operations.PoisonFilter()) == "manage.py deadletter retry --all"


def test_the_buttons_of_the_list_send_what_the_views_read(admin_client: Client, poisoned) -> None:
    record = poisoned()
    html = admin_client.get(url("poisonrecord", "records"), {"name": "mail"}).content.decode()

    actions = set(re.findall(r'formaction="([^"]+)"', html))

    assert actions == {
        url("poisonrecord", "bulk", "retry"),
        url("poisonrecord", "bulk", "remove"),
        url("poisonrecord", "export"),
    }
    assert '<input type="hidden" name="name" value="mail">' in html
    assert f'name="ids" value="{record.pk}"' in html
