"""The pages of schedules: list, calendar, one schedule, its form and its acts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from deadletter import lifecycle, operations, schedules
from deadletter.lifecycle import Failure
from deadletter.models import AuditEntry, Message, PoisonRecord, Schedule, ScheduleRun

from ..conftest import SCRIPT, url

CALENDAR = reverse("admin:deadletter_schedule_calendar")
#: What the form sends besides the fields of a test.
BLANK = {"kind": "message", "time_zone": "UTC", "overlap": "skip", "missed": "once",
         "grace": "1m", "jitter": "0"}  # fmt: skip


@pytest.fixture
def nightly(clock) -> Schedule:
    clock.set(datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
    return operations.create_schedule(
        "nightly", message="report.build", payload={"month": 3}, cron="0 3 * * *",
        time_zone="Europe/Berlin",
    )  # fmt: skip


def text(answer) -> str:
    assert answer.status_code == 200
    return answer.content.decode()


def page(row: Schedule, name: str = "change") -> str:
    return url("schedule", name, row.pk)


def test_the_list_shows_the_next_run_in_both_time_zones(admin_client: Client, nightly):
    with timezone.override("UTC"):
        html = text(admin_client.get(url("schedule")))

    assert "nightly" in html
    assert "Mon, March 2, 02:00" in html
    assert "Mon 03:00 CET" in html
    assert "<code>0 3 * * *</code>" in html
    assert '<td class="field-last_run">-</td>' in html


def test_the_list_shows_what_became_of_the_last_message(admin_client: Client, nightly):
    waiting = operations.run_schedule("nightly", by="ann").message_id
    assert "pending" in text(admin_client.get(url("schedule")))

    batch = lifecycle.claim(limit=1, worker="w1")
    lifecycle.fail(batch.token, [Failure(waiting, permanent=True, error="boom")])
    html = text(admin_client.get(url("schedule")))

    record = PoisonRecord.objects.get(message_id=waiting)
    assert f'href="{url("poisonrecord", "change", record.pk)}"' in html
    assert ">dead</span>" in html


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        ("active", {}),
        ("paused", {"paused": True, "next_at": None, "due_at": None}),
        ("orphaned", {"orphaned_at": datetime(2026, 3, 1, tzinfo=UTC), "due_at": None}),
        ("broken", {"failing_since": datetime(2026, 3, 1, tzinfo=UTC), "last_error": SCRIPT}),
        ("ended", {"next_at": None, "due_at": None}),
        ("late", {"due_at": datetime(2026, 3, 1, 11, 57, tzinfo=UTC)}),
    ],
)
def test_every_schedule_has_one_state_which_the_list_can_be_filtered_by(
    admin_client: Client, nightly, state: str, changes
):
    Schedule.objects.filter(pk=nightly.pk).update(**changes)

    found = [
        word
        for word in ("active", "late", "broken", "paused", "orphaned", "ended")
        if page(nightly) in text(admin_client.get(url("schedule"), {"state": word}))
    ]

    assert found == [state]
    html = text(admin_client.get(page(nightly)))
    assert ("Why it does not run" in html) == (state != "active")
    assert "<script>alert" not in html
    assert ("&lt;script&gt;alert" in html) == (state == "broken")


def test_the_page_shows_runs_and_what_became_of_their_messages(
    admin_client: Client, nightly, clock
):
    clock.set(datetime(2026, 3, 2, 2, 0, 5, tzinfo=UTC))
    schedules.fire_due()
    fired = Message.objects.get()
    manual = operations.run_schedule("nightly", by="ann").message_id

    html = text(admin_client.get(page(nightly)))

    assert ScheduleRun.objects.count() == 2
    for id in (fired.pk, manual):
        assert f'<a href="{url("message", "change", id)}">{id}</a>' in html
    assert "run by ann" in html
    assert "&quot;month&quot;: 3" in html
    assert "Tue, March 3, 02:00" in html
    assert html.count("<li>\n      <time") == 5


def test_the_page_says_how_late_a_message_was_sent_and_what_comes(
    admin_client: Client, nightly, clock
):
    clock.set(datetime(2026, 3, 2, 5, 10, tzinfo=UTC))
    schedules.fire_due()
    clock.set(datetime(2026, 3, 5, 12, 0, tzinfo=UTC))

    html = text(admin_client.get(page(nightly)))

    assert "sent 3\N{NO-BREAK SPACE}hours later" in html
    assert "It has been due for 2\N{NO-BREAK SPACE}days: no worker fires it." in html
    # The overdue moment is the next run; the list below it begins now.
    ahead = html.split("dl-moments")[1].split("</ol>")[0]
    assert "Tue, March 3" in html
    assert ahead.count("<time") == 5
    assert ahead.index("Fri, March 6") < ahead.index("Tue, March 10")
    assert "March 3" not in ahead


def test_the_page_of_a_paused_schedule_says_who_decides(admin_client: Client, nightly):
    operations.pause_schedule("nightly", by="ann")

    html = text(admin_client.get(page(nightly)))

    assert "A person has paused it." in html


def test_the_calendar_lists_the_next_24_hours(admin_client: Client, nightly):
    operations.create_schedule("often", message="ping", interval="10m")
    operations.create_schedule("rare", message="ping", cron="45 12 * * *", time_zone="UTC")
    operations.create_schedule("far", message="ping", at=datetime(2026, 3, 9, tzinfo=UTC))
    paused = operations.create_schedule("paused", message="ping", interval="1h")
    operations.pause_schedule("paused")

    html = text(admin_client.get(CALENDAR))

    assert html.count('class="dl-hour') >= 24
    assert "02:00" in html
    assert page(nightly) in html
    assert "<code>every 10m</code>" in html
    assert "12:45" in html
    assert html.count(page(Schedule.objects.get(name="often"))) == 1
    for name in ("far", "paused"):
        assert page(Schedule.objects.get(name=name)) not in html
    assert paused.pk


def test_the_calendar_of_many_schedules_is_bounded(
    admin_client: Client, clock, django_assert_max_num_queries
):
    clock.set(datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
    Schedule.objects.bulk_create(
        Schedule(
            name=f"s{n}", target="ping", interval=timedelta(hours=1), created_at=clock.now,
            next_at=clock.now + timedelta(seconds=n), due_at=clock.now + timedelta(seconds=n),
        )
        for n in range(600)
    )  # fmt: skip

    with django_assert_max_num_queries(12):
        html = text(admin_client.get(CALENDAR))

    assert "only those that run next are shown" in html
    assert len(html) < 2_000_000


def test_run_now_pause_and_resume_ask_act_and_are_audited(admin_client: Client, nightly):
    for act in ("run", "pause", "resume"):
        asked = text(admin_client.get(page(nightly, act)))
        assert f"manage.py deadletter schedules {act} nightly" in asked
        assert not AuditEntry.objects.filter(act=f"{act}_schedule").exists()
        answer = admin_client.post(page(nightly, act), {"why": f"{act} it"})
        assert answer.url == page(nightly)

    assert Message.objects.count() == 1
    assert [(e.act, e.by) for e in AuditEntry.objects.order_by("id")][1:] == [
        ("run_schedule", "admin"),
        ("pause_schedule", "admin"),
        ("resume_schedule", "admin"),
    ]
    assert LogEntry.objects.count() == 3


def test_what_cannot_be_sent_is_said_and_changes_nothing(admin_client: Client, nightly):
    Schedule.objects.filter(pk=nightly.pk).update(queue="gone")

    answer = admin_client.post(page(nightly, "run"), {"why": ""}, follow=True)

    assert "Nothing was sent." in text(answer)
    assert not Message.objects.exists()
    assert not ScheduleRun.objects.exists()


def test_a_schedule_whose_zone_became_unknown_is_not_resumed(admin_client: Client, nightly):
    operations.pause_schedule("nightly")
    Schedule.objects.filter(pk=nightly.pk).update(time_zone="Atlantis/Capital")

    answer = admin_client.post(page(nightly, "resume"), {"why": ""}, follow=True)

    assert "It was not resumed." in text(answer)
    assert Schedule.objects.get().paused is True


def test_each_act_needs_its_permission(login, nightly):
    browser = login("view_schedule")

    html = text(browser.get(page(nightly)))

    for act in ("run", "pause", "resume", "edit", "delete"):
        assert browser.get(page(nightly, act)).status_code == 403
        assert browser.post(page(nightly, act), {"post": "yes"}).status_code == 403
        assert f'href="{page(nightly, act)}"' not in html
    assert browser.get(url("schedule", "add")).status_code == 403
    assert "month" not in html
    assert Schedule.objects.get().paused is False


def test_a_schedule_is_made_with_a_form_and_audited(admin_client: Client, clock):
    clock.set(datetime(2026, 3, 1, 12, 0, tzinfo=UTC))
    given = {**BLANK, "name": "weekly", "target": "report.build", "cron": "0 3 * * 1",
             "payload": '{"week": true}', "why": "the board asked"}  # fmt: skip

    answer = admin_client.post(url("schedule", "add"), given)

    row = Schedule.objects.get()
    assert answer.url == page(row)
    assert (row.name, row.cron, row.payload) == ("weekly", "0 3 * * 1", {"week": True})
    assert row.next_at == datetime(2026, 3, 2, 3, tzinfo=UTC)
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.why) == ("edit_schedule", "admin", "the board asked")


def test_a_preview_shows_ten_runs_and_saves_nothing(admin_client: Client, clock):
    clock.set(datetime(2026, 3, 27, 12, 0, tzinfo=UTC))
    given = {**BLANK, "name": "weekly", "target": "report.build", "cron": "30 2 * * *",
             "time_zone": "Europe/Berlin", "_preview": "1"}  # fmt: skip

    html = text(admin_client.post(url("schedule", "add"), given))

    assert html.count("<li>\n      <time") == 10
    assert "Sat 02:30 CET" in html
    assert "Nothing is saved yet." in html
    assert "Times are in UTC." in html
    assert 'value="30 2 * * *"' in html
    assert not Schedule.objects.exists()
    assert not AuditEntry.objects.exists()


def test_a_preview_of_an_edit_uses_the_edited_times(admin_client: Client, nightly):
    given = {**BLANK, "target": "report.build", "interval": "90m", "_preview": "1"}

    html = text(admin_client.post(page(nightly, "edit"), given))

    assert html.count("<li>\n      <time") == 10
    assert "Sun, March 1, 13:30" in html
    assert Schedule.objects.get().cron == "0 3 * * *"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "0 3 * * *", "interval": "5m"}, "exactly one of them"),
        ({}, "exactly one of them"),
        ({"cron": "0 3 * * *", "time_zone": "Mars/Base"}, "is no time zone"),
        ({"interval": "5m", "queue": "nowhere"}, "nowhere"),
        ({"interval": "5m", "payload": "{"}, "errorlist"),
        ({"interval": "5m", "headers": "[]"}, "Expected an object"),
        ({"interval": "5m", "kind": "task", "target": "os.remove"}, "there is no task"),
    ],
)
@pytest.mark.parametrize("button", [{}, {"_preview": "1"}])
def test_a_wrong_form_is_shown_again_with_its_errors(
    admin_client: Client, clock, given, said, button
):
    answer = admin_client.post(
        url("schedule", "add"), {**BLANK, "name": "x", "target": "ping", **given, **button}
    )

    html = text(answer)
    assert said in html
    assert "errorlist" in html
    assert not Schedule.objects.exists()


def test_all_errors_of_a_form_are_shown_at_once(admin_client: Client, clock):
    given = {**BLANK, "name": "x", "target": "two words", "cron": "61 * * * *"}

    html = text(admin_client.post(url("schedule", "add"), given))

    assert "Bad minute" in html
    assert "is not a name" in html


def test_fields_that_the_form_does_not_show_are_ignored(admin_client: Client, nightly):
    hidden = {"paused": "on", "run_count": "7", "declaration": "x", "orphaned_at_0": "2026-01-01",
              "orphaned_at_1": "00:00", "last_error": "x", "due_at_0": "2026-01-01",
              "due_at_1": "00:00", "id": "99", "name": "other"}  # fmt: skip
    given = {**BLANK, **hidden, "target": "report.build", "cron": "0 4 * * *",
             "time_zone": "Europe/Berlin", "payload": '{"month": 3}'}  # fmt: skip

    admin_client.post(page(nightly, "edit"), given)

    row = Schedule.objects.get()
    assert (row.pk, row.name, row.cron) == (nightly.pk, "nightly", "0 4 * * *")
    assert (row.paused, row.run_count, row.declaration, row.orphaned_at, row.last_error) == (
        False, 0, "", None, "",
    )  # fmt: skip
    assert row.due_at == row.next_at == datetime(2026, 3, 2, 3, tzinfo=UTC)


def test_an_edit_changes_the_edited_fields_only(admin_client: Client, nightly):
    given = {**BLANK, "target": "report.build", "cron": "0 4 * * *",
             "time_zone": "Europe/Berlin", "payload": '{"month": 3}', "why": "later"}  # fmt: skip

    answer = admin_client.post(page(nightly, "edit"), given)

    assert answer.url == page(nightly)
    row = Schedule.objects.get()
    assert (row.name, row.cron, row.payload) == ("nightly", "0 4 * * *", {"month": 3})
    assert AuditEntry.objects.latest("id").detail == {"cron": "0 3 * * * → 0 4 * * *"}


def test_secrets_stay_hidden_in_the_form_and_are_kept(admin_client: Client, nightly):
    operations.set_schedule("nightly", payload={"password": "hunter2", "n": 1})

    form = text(admin_client.get(page(nightly, "edit")))
    given = {**BLANK, "target": "report.build", "cron": "0 3 * * *", "time_zone": "Europe/Berlin",
             "payload": '{"password": "[redacted]", "n": 2}'}  # fmt: skip
    admin_client.post(page(nightly, "edit"), given)

    assert "hunter2" not in form + text(admin_client.get(page(nightly)))
    assert Schedule.objects.get().payload == {"password": "hunter2", "n": 2}


def test_who_may_not_see_payloads_edits_the_rest(login, nightly):
    browser = login("view_schedule", "change_schedule")
    given = {**BLANK, "target": "report.build", "cron": "0 4 * * *", "time_zone": "Europe/Berlin",
             "payload": '{"month": 4}'}  # fmt: skip

    form = text(browser.get(page(nightly, "edit")))
    browser.post(page(nightly, "edit"), given)

    assert 'name="payload"' not in form
    assert (Schedule.objects.get().cron, Schedule.objects.get().payload) == (
        "0 4 * * *", {"month": 3},
    )  # fmt: skip


def test_a_schedule_is_deleted_with_its_runs_and_audited(admin_client: Client, nightly):
    operations.run_schedule("nightly")

    asked = text(admin_client.get(page(nightly, "delete")))
    admin_client.post(page(nightly, "delete"), {"post": "yes"})

    assert "nightly" in asked
    assert not Schedule.objects.exists()
    assert not ScheduleRun.objects.exists()
    assert Message.objects.count() == 1
    assert AuditEntry.objects.latest("id").detail["deleted"] == "True"
    assert admin_client.get(page(nightly)).status_code == 404


def test_the_page_of_a_schedule_that_is_gone_says_so(admin_client: Client, nightly):
    assert admin_client.get(url("schedule", "change", 999)).status_code == 404
    assert admin_client.get(page(nightly).replace(str(nightly.pk), "x")).status_code == 404
