"""The audit trail can be read, narrowed and searched, and never changed."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import lifecycle, operations, send, testing
from deadletter.models import AuditEntry

from .conftest import SCRIPT, url


def shown(response) -> list[int]:
    return [row.pk for row in response.context["cl"].result_list]


@pytest.fixture
def acts(poisoned, handles) -> dict[str, int]:
    """Ada retries a record, Grace removes a message and pauses a queue."""
    handles("mail", lambda message: None)
    record, message = poisoned("mail"), send("other", delay=600)
    operations.retry_poison(record.pk, by="ada", why="deployed the fix")
    operations.remove(message.pk, by="grace", why=SCRIPT)
    operations.pause("default", by="grace")
    found = dict(AuditEntry.objects.values_list("act", "pk"))
    return found | {"message": message.pk}


def test_the_list_says_who_did_what_and_what_came_of_it(admin_client: Client, acts) -> None:
    operations.resume("default", by="grace")
    testing.drain()
    lifecycle.sweep()

    html = admin_client.get(url("auditentry")).content.decode()

    assert "deployed the fix" in html
    assert "1 succeeded" in html
    assert "pause a queue" in html
    assert "<script>alert" not in html


def test_the_list_is_narrowed_to_an_act_and_to_a_person(admin_client: Client, acts) -> None:
    by_act = admin_client.get(url("auditentry"), {"act": "retry"})
    by_person = admin_client.get(url("auditentry"), {"by": "grace"})

    assert shown(by_act) == [acts["retry"]]
    assert shown(by_person) == [acts["pause"], acts["discard"]]
    assert shown(admin_client.get(url("auditentry"), {"by": "nobody"})) == []


def test_an_act_is_found_by_person_and_by_message(admin_client: Client, acts) -> None:
    assert shown(admin_client.get(url("auditentry"), {"q": "ada"})) == [acts["retry"]]
    by_message = admin_client.get(url("auditentry"), {"q": str(acts["message"])})
    assert acts["discard"] in shown(by_message)


def test_the_page_names_the_messages(admin_client: Client, acts) -> None:
    page = admin_client.get(url("auditentry", "change", acts["discard"])).content.decode()

    link = url("message", "change", acts["message"])
    assert f'<a href="{link}">#{acts["message"]}</a>' in page
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page


def test_nobody_changes_the_trail(admin_client: Client, login, acts) -> None:
    pk = acts["retry"]
    before = AuditEntry.objects.filter(pk=pk).values().get()

    assert admin_client.get(url("auditentry", "add")).status_code == 403
    assert admin_client.post(url("auditentry", "change", pk), {"by": "eve"}).status_code == 403
    assert admin_client.post(url("auditentry", "delete", pk), {"post": "yes"}).status_code == 403
    assert login().get(url("auditentry")).status_code == 403
    assert AuditEntry.objects.filter(pk=pk).values().get() == before


def edit(poisoned, before, after) -> str:
    """Edit and retry a record; return the address of the entry."""
    outcome = operations.retry_poison(poisoned("mail", before).pk, by="ann", payload=after)
    return url("auditentry", "change", outcome.entry_id)


def test_an_edit_is_shown_as_a_difference(admin_client: Client, poisoned) -> None:
    page = edit(poisoned, {"to": "brokn", "same": 1}, {"to": "broken", "same": 1})

    html = admin_client.get(page).content.decode()

    assert re.search(r'dl-went">.*?<code>  &quot;to&quot;: &quot;brokn&quot;', html)
    assert re.search(r'dl-came">.*?<code>  &quot;to&quot;: &quot;broken&quot;', html)
    assert "Values that are hidden here change as well." not in html


def test_an_edit_is_redacted_by_the_rules_of_the_site(admin_client: Client, poisoned) -> None:
    before = {"to": "a", "password": "0ld-s3cret", "body": '{"token": "0ld-s3cret"}'}
    page = edit(poisoned, before, {**before, "to": "b", "password": "n3w-s3cret"})

    html = admin_client.get(page).content.decode()

    assert "s3cret" not in html
    assert "[redacted]" in html
    assert "Values that are hidden here change as well." in html


def test_who_may_not_see_payloads_sees_that_there_was_an_edit(login, poisoned) -> None:
    page = edit(poisoned, {"to": "brokn"}, {"to": "broken"})

    html = login("view_auditentry").get(page).content.decode()

    assert "You may not see payloads." in html
    assert "brok" not in html


def test_an_edit_whose_payloads_were_cleared_says_so(admin_client: Client, poisoned) -> None:
    page = edit(poisoned, {"to": "brokn"}, {"to": "broken"})
    AuditEntry.objects.update(payload_before=None, payload_after=None)

    assert "The payloads are no longer stored." in admin_client.get(page).content.decode()


def test_hostile_payloads_of_an_edit_are_text(admin_client: Client, poisoned) -> None:
    page = edit(poisoned, {"x": SCRIPT}, {"x": SCRIPT + "\u202e"})
    AuditEntry.objects.update(payload_before='{"x": ' + SCRIPT)

    html = admin_client.get(page).content.decode()

    assert SCRIPT not in html
    assert "\u202e" not in html


def test_the_list_reads_no_payloads(admin_client: Client, poisoned) -> None:
    edit(poisoned, {"to": "brokn"}, {"to": "broken"})

    with CaptureQueriesContext(connection) as queries:
        assert admin_client.get(url("auditentry", "changelist")).status_code == 200

    assert not [q["sql"] for q in queries if "payload_" in q["sql"]]
