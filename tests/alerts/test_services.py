"""Notices for Slack, Microsoft Teams and PagerDuty: their formats, limits, secrets and ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deadletter import operations, testing
from deadletter.alerts import pagerduty, send_test, slack, teams
from deadletter.conf import get_settings
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import Alert, Message
from tests.operations.records import dead, many_dead

from .servers import http_server

pytestmark = pytest.mark.slow

KEY = "0123456789abcdef0123456789ABCDEF"
SITE = "https://shop.example.org"
#: Mentions, links and formatting of the services, a date function, and text that moves lines.
HOSTILE = (
    "<!channel> <https://evil.example|ok> [ok](https://evil.example) **b** *b* `c` :bomb: "
    "<at>everyone</at> {{DATE(2020-01-01T00:00:00Z)}} & \r\nforged: \x1b[2J\u202e"
)


@pytest.fixture
def receiver():
    with http_server() as found:
        yield found


@pytest.fixture
def service(rules, receiver):
    """Switch a rule on, with the local server as the only channel: `service("slack")`."""

    def switch_on(kind: str, *, given: Any = None, **options: Any) -> None:
        channel = {"type": kind, "url": receiver.url, **(options or {})}
        if kind == "pagerduty":
            channel["key"] = KEY
        rules(channels={"team": channel}, base_url=SITE, digest=1, **(given or {"new_group": True}))

    return switch_on


def drain() -> Any:
    return testing.drain(["deadletter"])


def bodies(receiver: Any) -> list[dict[str, Any]]:
    assert {request.headers["content-type"] for request in receiver.requests} == {
        "application/json"
    }
    return [json.loads(request.body) for request in receiver.requests]


def alert_of(**values: Any) -> dict[str, Any]:
    """An alert as a notice carries it."""
    return {
        "event": "raised",
        "key": "new_group:0",
        "rule": "new_group",
        "subject": "0",
        "title": "mail dies of Boom (1 so far)",
        "since": "2026-01-01T00:00:00+00:00",
        "last_at": "2026-01-01T00:00:00+00:00",
        "ended_at": None,
        "count": 3,
        "more": False,
        "new": 0,
        "left": None,
        "left_more": False,
        "largest": None,
        "queue": "q",
        "name": "mail",
        "exception": "Boom",
        "above": None,
        "within": None,
        "detail": {},
        "error": "boom",
        "url": f"{SITE}/admin/?a=1&b=2",
        **values,
    }


def notice_of(*alerts: dict[str, Any], **values: Any) -> dict[str, Any]:
    found = {"version": 1, "id": "0123", "at": "2026-01-01T00:00:00+00:00", "test": False}
    return {**found, "alerts": list(alerts), "omitted": {}, **values}


def largest_notice() -> dict[str, Any]:
    """As many alerts as a notice lists, each as long as it may be."""
    texts = {"title": "t" * 150, "name": "n" * 120, "queue": "q" * 120, "error": "ä\n" * 1_000}
    return notice_of(
        *(alert_of(key=f"new_group:{n}", **texts, url=f"{SITE}/{'u' * 400}") for n in range(20)),
        omitted={"raised": 480},
    )


def test_slack_gets_blocks_with_a_link_to_the_group(clock, service, receiver, decide):
    service("slack")
    decide()
    record = dead("orders.ship", error="ConnectionError: away\nsecond line")
    decide()

    assert drain().completed == 1

    [body] = bodies(receiver)
    title = "orders.ship dies of UNKNOWN (1 so far)"
    assert body["text"] == f"deadletter: new: {title}"
    header, section, facts, error, link = body["blocks"]
    assert header["text"]["text"] == f"deadletter: new: {title}"
    assert section["text"] == {"type": "plain_text", "text": f"new: {title}", "emoji": False}
    assert (
        "how many: 1 · still there: 1 · name: orders.ship · queue: default"
        in (facts["elements"][0]["text"])
    )
    assert error["elements"][0]["elements"][0]["text"] == "ConnectionError: away\nsecond line"
    assert link["text"]["text"].startswith(f"<{SITE}/admin/deadletter/")
    assert record.fingerprint in link["text"]["text"]


def test_nothing_hostile_is_interpreted_by_slack(clock, service, receiver, decide):
    service("slack")
    decide()
    dead("mail", error=HOSTILE, failure={"exception": HOSTILE})
    decide()

    assert drain().completed == 1

    [body] = bodies(receiver)
    assert "<" not in body["text"]
    assert "&lt;!channel&gt;" in body["text"]
    assert (body["mrkdwn"], body["link_names"]) == (False, False)
    interpreted = [
        block["text"]["text"]
        for block in body["blocks"]
        if block.get("text", {}).get("type") == "mrkdwn"
    ]
    assert len(interpreted) == 1
    assert "evil" not in interpreted[0]
    assert "\x1b" not in str(body)
    assert "\u202e" not in str(body)


def test_a_message_for_slack_keeps_the_limits_of_slack():
    body = slack.render(largest_notice())

    assert len(body["blocks"]) <= 50
    assert len(body["blocks"][0]["text"]["text"]) <= 150
    texts = [block["text"]["text"] for block in body["blocks"] if "text" in block]
    assert max(map(len, texts)) <= 3_000
    # 11 of the 20 are shown.
    assert "and 489 more: new" in texts


def test_the_ampersand_of_a_link_is_escaped_for_slack():
    [link] = [b for b in slack.render(notice_of(alert_of()))["blocks"][1:] if "mrkdwn" in str(b)]

    assert link["text"]["text"] == f"<{SITE}/admin/?a=1&amp;b=2|Open in the admin>"


def runs(value: Any) -> list[str]:
    """Return all texts of a card, of whichever element."""
    if isinstance(value, dict):
        found = [value["text"]] if value.get("type") in ("TextRun", "TextBlock") else []
        return found + [text for item in value.values() for text in runs(item)]
    return [text for item in value for text in runs(item)] if isinstance(value, list) else []


def test_teams_gets_an_adaptive_card_with_a_link_to_the_group(clock, service, receiver, decide):
    service("teams")
    decide()
    record = dead("orders.ship", error="ConnectionError: away\nsecond line")
    decide()

    assert drain().completed == 1

    [body] = bodies(receiver)
    assert body["type"] == "message"
    [attachment] = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    title = "orders.ship dies of UNKNOWN (1 so far)"
    assert runs(card)[:2] == [f"deadletter: new: {title}", f"new: {title}"]
    assert {"name: orders.ship", "queue: default", "second line"} <= set(runs(card))
    [action] = card["body"][1]["items"][-1]["actions"]
    assert action["type"] == "Action.OpenUrl"
    assert action["url"].startswith(f"{SITE}/admin/deadletter/")
    assert record.fingerprint in action["url"]


def test_nothing_hostile_is_interpreted_by_teams(clock, service, receiver, decide):
    service("teams")
    decide()
    dead("mail", error=HOSTILE, failure={"exception": HOSTILE})
    decide()

    assert drain().completed == 1

    [body] = bodies(receiver)
    # Runs of text are not Markdown, and entities, which mentions need, are absent.
    assert "'TextBlock'" not in str(body)
    assert "FactSet" not in str(body)
    assert "entities" not in str(body)
    assert all("{{" not in text for text in runs(body))
    card = body["attachments"][0]["content"]
    assert "evil" not in str(card["body"][-1]["items"][-1])
    assert "\u202e" not in str(body)


def test_a_message_for_teams_keeps_its_limit_and_counts_what_it_leaves_out():
    body = teams.render(largest_notice())

    assert len(body) <= 28_000
    card = json.loads(body)["attachments"][0]["content"]
    shown = sum(element["type"] == "Container" for element in card["body"])
    assert 1 <= shown < 20
    assert runs(card)[-1] == f"and {500 - shown} more: new"


def test_pagerduty_gets_an_incident_that_ends_with_the_alert(clock, service, receiver, decide):
    service("pagerduty", given={"new_group": True, "recover_after": 60}, severity="critical")
    decide()
    record = dead("orders.ship", error="ConnectionError: away")
    decide()
    assert drain().completed == 1
    decide(120)
    assert drain().completed == 1

    begin, end = bodies(receiver)
    assert (begin["event_action"], end["event_action"]) == ("trigger", "resolve")
    assert begin["routing_key"] == end["routing_key"] == KEY
    assert begin["dedup_key"] == end["dedup_key"]
    payload = begin["payload"]
    assert payload["summary"] == "new: orders.ship dies of UNKNOWN (1 so far)"
    assert (payload["severity"], payload["source"]) == ("critical", "shop.example.org")
    assert (payload["component"], payload["group"]) == ("default", "orders.ship")
    assert payload["class"] == "new_group"
    assert payload["custom_details"]["error"] == "ConnectionError: away"
    assert record.fingerprint in begin["links"][0]["href"]
    assert "payload" not in end


def test_a_group_that_is_muted_or_resolved_ends_its_incident(clock, service, receiver, decide):
    service("pagerduty")
    decide()
    group = dead("mail").fingerprint
    fold_all_groups()
    decide()
    drain()
    operations.mute_group(group, by="ann")

    decide()

    assert drain().completed == 1
    assert [body["event_action"] for body in bodies(receiver)] == ["trigger", "resolve"]


def test_a_late_notice_opens_no_incident_that_has_ended(clock, service, receiver, decide):
    service("pagerduty", given={"new_group": True, "recover_after": 60})
    decide()
    dead("mail")
    decide()
    receiver.answers = [500]
    assert drain().failed == 1
    decide(120)

    while Message.objects.exists():
        clock.advance(60)
        drain()

    assert [body["event_action"] for body in bodies(receiver)] == ["trigger", "resolve", "resolve"]


def test_every_end_reaches_pagerduty_however_many(clock, service, receiver, decide):
    service("pagerduty", given={"new_group": True, "recover_after": 60})
    decide()
    for n in range(45):
        dead(f"mail.{n}")
    decide()
    drain()
    # The twenty largest of a notice become incidents.
    assert [body["event_action"] for body in bodies(receiver)] == ["trigger"] * 20

    decide(120)
    drain()

    ends = [body["dedup_key"] for body in bodies(receiver)[20:]]
    assert len(set(ends)) == 45
    assert Alert.objects.filter(settled_at=None).count() == 0


def test_two_sites_with_one_key_have_incidents_of_their_own(clock, service, receiver, decide):
    service("pagerduty", source="staging")
    decide()
    dead("mail")
    decide()
    [message] = Message.objects.filter(name="deadletter.alert")
    notice = message.payload["notice"]
    channel = get_settings().alerts.channel("team")
    [here] = pagerduty.render(channel, notice)
    service("pagerduty", source="production")
    [there] = pagerduty.render(get_settings().alerts.channel("team"), notice)

    assert here["payload"]["source"] == "staging"
    assert here["dedup_key"] != there["dedup_key"]
    assert len(here["dedup_key"]) <= 255


def test_an_event_for_pagerduty_keeps_its_limits(clock, service):
    service("pagerduty")
    many_dead(1)
    notice = largest_notice()
    Alert.objects.create(
        key="new_group:0", rule="new_group", since=clock.now, opened_at=clock.now, last_at=clock.now
    )
    events = pagerduty.render(get_settings().alerts.channel("team"), notice)

    assert len(events[0]["payload"]["summary"]) <= 1_024
    assert len(json.dumps(events[0])) <= 512 * 1024
    assert [event["event_action"] for event in events] == ["trigger"] + ["resolve"] * 19


@pytest.mark.parametrize("kind", ["slack", "teams", "pagerduty"])
def test_a_test_notice_says_that_it_is_one(clock, service, receiver, kind):
    service(kind)
    send_test()

    assert drain().completed == 1

    [body] = bodies(receiver)
    assert "deadletter: test of the alerts" in json.dumps(body)


@pytest.mark.parametrize("kind", ["slack", "teams", "pagerduty"])
def test_a_refusal_is_tried_again_and_quotes_no_secret(clock, service, receiver, kind, caplog):
    service(kind)
    receiver.url += "/services/T0001/not-to-be-seen"
    service(kind)
    receiver.answers = [429]
    key = KEY if kind == "pagerduty" else ""
    receiver.body = f"not-to-be-seen {key} slow down".encode()
    send_test()

    assert drain().failed == 1
    error = Message.objects.get().error
    assert "answered 429" in error
    assert "slow down" in error
    assert "not-to-be-seen" not in error + caplog.text
    assert KEY not in error + caplog.text + str(Message.objects.get().payload)

    clock.advance(60)
    assert drain().completed == 1


@pytest.mark.parametrize("kind", ["slack", "teams", "pagerduty"])
def test_errors_that_must_not_leave_the_site_do_not(clock, service, receiver, decide, kind):
    service(kind, given={"new_group": True, "errors": False})
    decide()
    dead(error="card 4111")
    decide()

    assert drain().completed == 1

    assert "4111" not in json.dumps(bodies(receiver))
