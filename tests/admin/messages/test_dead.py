"""Messages in dead queues: lists and pages say where and why they died, and lead them back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from deadletter import FailureReason, lifecycle, operations, send
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import Message, PoisonRecord, Queue

from ..conftest import url


@pytest.fixture
def dead_queue(policy) -> Queue:
    queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=queue)
    return queue


@pytest.fixture
def buried(dead_queue) -> list[Message]:
    """Two messages of "default" that lie in its dead queue."""
    # So that no record has the id of a message.
    operations.remove([send("other").pk for _ in range(5)])
    for n in range(2):
        message = send("mail", {"n": n})
        batch = lifecycle.claim(limit=1)
        failure = Failure(
            message.pk,
            error="the card 4111 was refused",
            reason=FailureReason.VALIDATION_FAILURE,
            permanent=True,
        )
        lifecycle.fail(batch.token, [failure])
    fold_all_groups()
    return list(Message.objects.filter(queue=dead_queue).order_by("pk"))


def page(browser: Client, **query: Any) -> str:
    response = browser.get(url("message"), query)
    assert response.status_code == 200
    return response.content.decode()


def act(slug: str, *messages: Message) -> str:
    ids = ",".join(str(message.pk) for message in messages)
    return reverse("admin:deadletter_message_act", args=[slug]) + f"?ids={ids}"


def test_the_list_of_a_dead_queue_says_where_why_and_when(admin_client, buried, dead_queue) -> None:
    html = page(admin_client, queue=dead_queue.pk)

    assert "died in default of validation failure, the card 4111 was refused, " in html
    assert f" s ago, as message {buried[0].source_id}" in html
    assert "Retry in its original queue" in html


def test_other_lists_say_nothing_of_deaths(admin_client, buried) -> None:
    default = Queue.objects.get(name="default")
    send("mail")

    for html in (page(admin_client), page(admin_client, queue=default.pk)):
        assert "died in" not in html
        assert "Retry in its original queue" not in html


def test_a_list_of_deaths_takes_as_many_statements_as_any(admin_client, buried, dead_queue) -> None:
    with CaptureQueriesContext(connection) as two:
        page(admin_client, queue=dead_queue.pk)
    Message.objects.filter(pk=buried[0].pk).delete()
    with CaptureQueriesContext(connection) as one:
        page(admin_client, queue=dead_queue.pk)

    assert len(one) == len(two)


def test_the_text_of_the_error_needs_the_payload_permission(login, buried, dead_queue) -> None:
    browser = login("view_message")

    for html in (
        page(browser, queue=dead_queue.pk),
        browser.get(url("message", "change", buried[0].pk)).content.decode(),
    ):
        assert "died in default of validation failure" in html
        assert "4111" not in html
    assert "Retry in its original queue" not in page(browser, queue=dead_queue.pk)


def test_a_message_page_says_how_it_died_and_leads_back(admin_client, buried) -> None:
    html = admin_client.get(url("message", "change", buried[0].pk)).content.decode()

    assert "died in default of validation failure" in html
    assert f"act/retry-dead/?ids={buried[0].pk}" in html
    other = send("plain")
    assert "retry-dead" not in admin_client.get(url("message", "change", other.pk)).content.decode()


def test_they_go_back_after_a_question(admin_client, buried) -> None:
    html = admin_client.get(act("retry-dead", *buried)).content.decode()
    assert "2 messages go back to queue default, under the ids that they had there." in html

    ids = ",".join(str(message.pk) for message in buried)
    answer = {"ids": ids, "why": "the card works"}
    response = admin_client.post(act("retry-dead"), answer, follow=True)

    assert [str(message) for message in response.context["messages"]] == [
        "2 messages are back in their queues."
    ]
    assert set(Message.objects.values_list("pk", "queue__name")) == {
        (message.source_id, "default") for message in buried
    }


def test_a_message_that_did_not_come_from_elsewhere_is_left_alone(admin_client, buried) -> None:
    other = send("plain")

    html = admin_client.get(act("retry-dead", other)).content.decode()

    assert "did not come from another queue; it has no original queue to return to" in html
    assert "There is nothing to do." in html


def test_nobody_retries_without_the_permission(login, buried) -> None:
    browser = login("view_message", "view_poisonrecord", "remove_poison")

    assert browser.get(act("retry-dead", buried[0])).status_code == 403
    assert browser.post(act("retry-dead"), {"ids": str(buried[0].pk)}).status_code == 403
    assert Message.objects.filter(pk=buried[0].pk).exists()


def test_a_group_in_a_dead_queue_leads_to_its_messages(admin_client, buried) -> None:
    fold_all_groups()
    group = buried[0].fingerprint
    there = f"{url('message')}?group={group}"

    html = admin_client.get(url("poisonrecord")).content.decode()
    assert "<strong>2</strong>" in html
    assert "2 in dead queues" in html
    assert f'href="{there}"' in html
    assert "Retry group" not in html
    assert page(admin_client, group=group).count("died in default") == 2
    assert "died in default" not in page(admin_client, group="other")


def test_the_records_of_a_group_lead_to_what_lies_in_dead_queues(
    admin_client, buried, policy
) -> None:
    policy(on_poison="quarantine")
    message = send("mail")
    batch = lifecycle.claim(limit=1)
    failure = Failure(
        message.pk, error="x", reason=FailureReason.VALIDATION_FAILURE, permanent=True
    )
    lifecycle.fail(batch.token, [failure])
    group = PoisonRecord.objects.get().fingerprint

    html = admin_client.get(url("poisonrecord", "records"), {"fingerprint": group}).content.decode()

    assert group == buried[0].fingerprint
    assert "2 messages of this group lie in dead queues" in html
    assert f"?group={group}" in html


def test_the_dashboard_leads_to_a_group_in_a_dead_queue(admin_client, buried) -> None:
    html = admin_client.get(reverse("admin:app_list", args=["deadletter"])).content.decode()

    assert f"{url('message')}?group={buried[0].fingerprint}" in html


def test_what_died_again_in_its_dead_queue_says_where_it_died_first(admin_client, buried) -> None:
    operations.poison([buried[0].pk], why="looked at")
    record = PoisonRecord.objects.get()

    html = admin_client.get(url("poisonrecord", "change", record.pk)).content.decode()

    assert "died in default of validation failure, the card 4111 was refused" in html


def test_the_id_it_had_before_leads_to_it(admin_client, buried) -> None:
    first, second = buried
    operations.poison([second.pk], why="looked at")
    record = PoisonRecord.objects.get()

    assert f'href="{url("message", "change", first.pk)}' in page(admin_client, q=first.source_id)
    records = url("poisonrecord", "records")
    answer = admin_client.get(records, {"q": str(first.source_id)})
    assert answer["Location"] == url("message", "change", first.pk)
    answer = admin_client.get(records, {"q": str(second.source_id)})
    assert answer["Location"] == url("poisonrecord", "change", record.pk)


def test_the_page_of_the_id_it_had_leads_to_where_it_is(admin_client, login, buried) -> None:
    first, second = buried
    operations.poison([second.pk], why="looked at")
    record = PoisonRecord.objects.get()

    html = admin_client.get(url("message", "change", first.source_id)).content.decode()
    assert "is in the dead queue dead under another id" in html
    assert f'href="{url("message", "change", first.pk)}"' in html
    here = url("message", "change", second.source_id)
    answer = admin_client.get(here)
    html = answer.content.decode()
    assert answer.status_code == 200
    assert "was moved to the dead queue dead and died there again" in html
    assert f'href="{url("poisonrecord", "change", record.pk)}"' in html
    html = admin_client.get(url("message", "change", second.pk)).content.decode()
    assert "It is dead: it is stored as a poison record." in html

    html = login("view_message").get(here).content.decode()
    assert "died there again" in html
    assert "4111" not in html
    assert url("poisonrecord", "change", record.pk) not in html


@pytest.mark.slow
def test_a_list_names_the_command_for_all_of_it(admin_client, login, buried, dead_queue) -> None:
    group = buried[0].fingerprint
    whole = "manage.py deadletter retry --dead-queue dead"
    assert f"{whole} --why" in page(admin_client, queue=dead_queue.pk)
    assert f"{whole} --fingerprint {group} --why" in page(admin_client, group=group)
    looker = login("view_message", "view_queue")
    for query in ({"queue": dead_queue.pk}, {"group": group}):
        assert "on the command line" not in page(looker, **query)
    for query in ({}, {"group": "x" * 17}, {"queue": "9" * 30}, {"group": group, "q": "7"}):
        assert "on the command line" not in page(admin_client, **query)


def test_what_lies_in_a_paused_dead_queue_waits_for_nothing(admin_client, buried, dead_queue):
    Queue.objects.filter(pk=dead_queue.pk).update(paused=True)

    html = admin_client.get(url("message", "change", buried[0].pk)).content.decode()

    assert "It died and is in this dead queue until an operator acts." in html
    assert "It has been due" not in html
    # Its error is told once, by its death.
    assert html.count("the card 4111 was refused") == html.count("died in default of") + html.count(
        '<pre class="dl-text">the card 4111'
    )


def test_a_group_without_records_leads_to_its_way_back(admin_client, login, buried) -> None:
    def text(browser: Client) -> str:
        return str(browser.get(url("poisonrecord")).content.decode())

    fold_all_groups()
    button = f'<a class="button" href="{url("message")}?group={buried[0].fingerprint}">'
    assert button in text(admin_client)
    assert button not in text(login("view_poisonrecord", "view_message"))
