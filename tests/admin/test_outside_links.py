"""Links to other systems: checked at the start, values quoted, hosts fixed."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from deadletter import send
from deadletter.admin.outside_links import links_of_group, outside_links, trace_of
from deadletter.checks import check_settings
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import FailureGroup, Message, Queue

from .conftest import SCRIPT
from .conftest import url as page_url

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def links(settings: Any) -> Any:
    def set_to(value: Any) -> None:
        settings.DEADLETTER = {**settings.DEADLETTER, "LINKS": value}

    return set_to


def problems(settings: Any, value: Any) -> list[tuple[str, str]]:
    settings.DEADLETTER = {"LINKS": value}
    return [(message.id, message.msg) for message in check_settings(None)]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"Logs": "https://logs.example.org/?q={message_id}&a={since}&b={until}"},
        [("Logs", "http://logs:3000/{name}/{queue}"), ["Group", "https://a.org/#{fingerprint}"]],
        {"Explore": "https://grafana.example.org/explore?left={{%22q%22:%22{trace_id}%22}}"},
        {"Plain": "https://status.example.org"},
    ],
    ids=str,
)
def test_good_links_pass(settings, value):
    assert problems(settings, value) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "expected a dict"),
        ("https://a.org", "expected a dict"),
        ({f"l{n}": "https://a.org" for n in range(21)}, "at most 20"),
        ([("a", "b", "c")], "expected pairs"),
        ({"": "https://a.org"}, "is no label"),
        ({"a\nb": "https://a.org"}, "is no label"),
        ({"a": 5}, "expected a URL"),
        ({"a": "javascript:alert({message_id})"}, "expected an address"),
        ({"a": "data:text/html,{name}"}, "expected an address"),
        ({"a": "//a.org/{name}"}, "expected an address"),
        ({"a": "{name}"}, "expected an address"),
        ({"a": "https://{name}/"}, "expected an address"),
        ({"a": "https://a.org{name}"}, "the host must be complete"),
        ({"a": "https://a.org:{message_id}/"}, "the host must be complete"),
        ({"a": "https://a.org/ {name}"}, "expected an address"),
        ({"a": "https://u:p@a.org/{name}"}, "user name or password"),
        ({"a": "https://a.org/{payload}"}, "unknown placeholder 'payload'"),
        ({"a": "https://a.org/{name.__class__}"}, "unknown placeholder"),
        ({"a": "https://a.org/{name!r}"}, "unknown placeholder"),
        ({"a": "https://a.org/{name:>10}"}, "unknown placeholder"),
        ({"a": "https://a.org/{}"}, "unknown placeholder"),
        ({"a": "https://a.org/{name"}, "braces do not match"),
    ],
    ids=str,
)
def test_bad_links_are_an_error_that_names_the_place(settings, value, text):
    [(id, message)] = problems(settings, value)

    assert id == "deadletter.E003"
    assert message.startswith("DEADLETTER: LINKS: ")
    assert text in message


def test_values_are_quoted_and_links_without_their_value_are_left_out(links, clock):
    links(
        {
            "Logs": "https://logs.example.org/?q={name}&since={since}",
            "Trace": "https://t.example.org/{trace_id}",
        }
    )

    found = outside_links(name="a/../b?x=1&y=ä#<'\"\ud800", since=clock.now)

    [link] = found
    assert link.label == "Logs"
    assert link.url == (
        "https://logs.example.org/?q=a%2F..%2Fb%3Fx%3D1%26y%3D%C3%A4%23%3C%27%22%3F&since="
        f"{clock.now:%Y-%m-%dT%H%%3A%M%%3A%SZ}"
    )


def test_the_page_of_a_record_links_to_other_systems(links, admin_client, poisoned):
    links(
        {
            "Logs": "https://logs.example.org/?q={message_id}&n={name}&f={fingerprint}&u={until}",
            f"{SCRIPT[:50]}": "https://t.example.org/{trace_id}",
        }
    )
    record = poisoned(name="mail/a+b", headers=PARENT)

    page = admin_client.get(page_url("poisonrecord", "change", record.pk)).content.decode()

    assert (
        f"https://logs.example.org/?q={record.message_id}&amp;n=mail%2Fa%2Bb"
        f"&amp;f={record.fingerprint}&amp;u={record.poisoned_at:%Y-%m-%dT%H%%3A%M%%3A%SZ}" in page
    )
    assert f'href="https://t.example.org/{TRACE}" rel="noopener noreferrer"' in page
    assert SCRIPT[:20] not in page


def test_the_page_of_a_message_links_to_other_systems(links, admin_client, clock):
    links(
        {
            "Logs": "https://logs.example.org/{queue}/{message_id}?u={until}",
            "Group": "https://g.example.org/{fingerprint}",
        }
    )
    message = send("mail")

    page = admin_client.get(page_url("message", "change", message.pk)).content.decode()

    assert f"https://logs.example.org/default/{message.pk}?u={clock.now:%Y-%m-%dT%H}" in page
    # It never failed, so it has no group.
    assert "g.example.org" not in page


def test_a_reader_without_payloads_gets_no_link_made_of_a_header(links, login, poisoned):
    links({"Trace": "https://t.example.org/{trace_id}", "Logs": "https://l.org/{message_id}"})
    record = poisoned(headers=PARENT)

    page = (
        login("view_poisonrecord")
        .get(page_url("poisonrecord", "change", record.pk))
        .content.decode()
    )

    assert "t.example.org" not in page
    assert f"https://l.org/{record.message_id}" in page


def test_without_links_a_page_has_no_section_of_them(admin_client, poisoned):
    page = admin_client.get(page_url("poisonrecord", "change", poisoned().pk)).content.decode()

    assert "In other systems" not in page


def test_a_message_in_a_dead_queue_links_by_the_id_under_which_it_ran(
    links, admin_client, policy, clock
):
    links({"Logs": "https://logs.example.org/{message_id}"})
    morgue = Queue.objects.create(name="morgue", paused=True)
    policy("q", on_poison="dead_queue", dead_queue=morgue)
    message = send("mail", queue="q")
    batch = claim(queues=["q"])
    fail(batch.token, [Failure(message.id, permanent=True, error="boom")])
    copy = Message.objects.get(queue__name="morgue")
    assert copy.pk != message.id

    page = admin_client.get(page_url("message", "change", copy.pk)).content.decode()

    assert f"https://logs.example.org/{message.id}" in page


def test_a_group_links_from_its_first_failure_to_its_last(links, clock, db):
    links({"Logs": "https://l.org/{name}/{fingerprint}?{since}/{until}"})
    group = FailureGroup(
        fingerprint="f" * 16,
        name="mail",
        first_failed_at=clock.now,
        last_failed_at=clock.now,
        state_at=clock.now,
    )

    [link] = links_of_group(group)

    at = f"{clock.now:%Y-%m-%dT%H%%3A%M%%3A%SZ}"
    assert link.url == f"https://l.org/mail/{'f' * 16}?{at}/{at}"


def test_the_page_of_a_group_has_its_links(links, clock, admin_client):
    links({"Logs": "https://l.org/{name}/{fingerprint}"})
    group = FailureGroup.objects.create(
        fingerprint="f" * 16,
        name="mail",
        first_failed_at=clock.now,
        last_failed_at=clock.now,
        state_at=clock.now,
    )
    address = reverse("admin:deadletter_poisonrecord_group", args=[group.fingerprint])

    page = admin_client.get(address).content.decode()

    assert f'href="https://l.org/mail/{"f" * 16}"' in page


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (PARENT, TRACE),
        ({"TraceParent": PARENT["traceparent"]}, TRACE),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, ""),
        ({"traceparent": "00-evil/../x-b7ad6b7169203331-01"}, ""),
        ({"traceparent": 5}, ""),
        ({}, ""),
        (None, ""),
        ([PARENT], ""),
    ],
    ids=str,
)
def test_only_a_trace_id_is_taken_from_headers(headers, expected):
    assert trace_of(headers) == expected
