"""Bad settings are refused by `manage.py check`, in words, and without quoting a secret."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter.checks import check_settings
from deadletter.conf import get_settings

from .conftest import SECRET

MAIL = {"ops": {"type": "email", "to": ["ops@example.org"]}}
HOOK = {"type": "webhook", "url": "https://example.org/x", "secret": SECRET}
SLACK = {"type": "slack", "url": "https://hooks.slack.com/services/T0/B0/x"}
PAGER = {"type": "pagerduty", "key": "0123456789abcdef0123456789ABCDEF"}


def found(settings, value) -> list[tuple[str, str]]:
    settings.DEADLETTER = {"ALERTS": value}
    return [(message.id, message.msg) for message in check_settings(None)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"rules": {}, "channels": {}},
        {"rules": {"new_group": True}, "channels": MAIL},
        {"rules": {"new_group": False, "worker_lost": None}, "channels": MAIL},
        {"rules": {"poison_rate": [{"above": 5}, {"above": 1, "queue": "mail"}]}, "channels": MAIL},
        {"rules": {"poison_depth": {"above": 100, "queue": "*"}}, "channels": {"hook": HOOK}},
        {"rules": {"oldest_age": {"after": timedelta(hours=1)}}, "channels": {"hook": HOOK}},
        {"rules": {}, "channels": {"hook": {**HOOK, "secret": [SECRET, SECRET], "timeout": 5}}},
        {"rules": {}, "channels": {"hook": {**HOOK, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZI"}}},
        {"rules": {}, "channels": {"hook": {**HOOK, "url": "http://localhost:8000/x"}}},
        {"rules": {}, "channels": {"hook": {**HOOK, "url": "http://a/x", "allow_http": True}}},
        {"rules": {}, "channels": {}, "base_url": "https://a.org/x/", "errors": False},
        {"rules": {}, "channels": {}, "interval": 5, "digest": 60, "recover_after": 1},
        {"rules": {}, "channels": {}, "remind": None},
        {"rules": {"regressed_group": {"queue": "mail"}}, "channels": {}},
        {"rules": {}, "channels": {"a": SLACK, "b": {**SLACK, "type": "teams", "timeout": 5}}},
        {"rules": {}, "channels": {"a": {**PAGER, "severity": "critical", "source": "shop"}}},
        {"rules": {}, "channels": {"a": {**PAGER, "url": "https://events.eu.pagerduty.com/v2"}}},
    ],
    ids=str,
)
def test_good_settings_pass(settings, value):
    assert found(settings, value) == []
    assert (get_settings().alerts is None) == (value is None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "expected a dict, got list"),
        ({"channels": {}}, "'rules' is missing"),
        ({"rules": {}}, "'channels' is missing"),
        ({"rules": {}, "channels": {}, "digets": 5}, "unknown option 'digets' (known: rules,"),
        ({"rules": {"new_grup": True}, "channels": {}}, "unknown rule 'new_grup' (known: new_"),
        ({"rules": {"new_group": 5}, "channels": {}}, "new_group: expected a dict, got int"),
        ({"rules": {"poison_rate": True}, "channels": {}}, "poison_rate: 'above' is missing"),
        ({"rules": {"oldest_age": {}}, "channels": {}}, "oldest_age: 'after' is missing"),
        ({"rules": {"poison_rate": {"above": -1}}, "channels": {}}, "above: expected 0 to 1,000"),
        ({"rules": {"poison_rate": {"above": 10**7}}, "channels": {}}, "above: expected 0 to 1,"),
        ({"rules": {"poison_rate": {"above": True}}, "channels": {}}, "above: expected 0 to 1,000"),
        ({"rules": {"worker_lost": {"after": 0}}, "channels": {}}, "after: must be at least a sec"),
        ({"rules": {"worker_lost": {"after": "1y"}}, "channels": {}}, "after: expected a duratio"),
        ({"rules": {"worker_lost": {"queue": "a"}}, "channels": {}}, "unknown option 'queue' (kn"),
        ({"rules": {"breaker_opened": {"x": 1}}, "channels": {}}, "option 'x' (known: none)"),
        (
            {"rules": {"poison_depth": [{"above": 1}, {"above": 2}]}, "channels": {}},
            "poison_depth: given twice for all queues",
        ),
        ({"rules": {}, "channels": []}, "channels: expected a dict, got list"),
        ({"rules": {}, "channels": {"a\n": {}}}, "is no name"),
        ({"rules": {}, "channels": {"a": {}}}, "'type' must be one of email, webhook, slack, te"),
        ({"rules": {}, "channels": {"a": {"type": ["email"]}}}, "'type' must be one of email"),
        ({"rules": {}, "channels": {"a": {"type": "email", "to": "x@a.org"}}}, "must be a list"),
        ({"rules": {}, "channels": {"a": {"type": "email", "to": []}}}, "must be a list of addr"),
        ({"rules": {}, "channels": {"a": {"type": "email", "to": ["x\n"]}}}, "not an e-mail addr"),
        ({"rules": {}, "channels": {"a": {**HOOK, "url": "http://a.org/"}}}, "must be https, got"),
        (
            {"rules": {}, "channels": {"a": {**HOOK, "url": "file:///etc/passwd"}}},
            "'url' is not an",
        ),
        ({"rules": {}, "channels": {"a": {**HOOK, "url": "ftp://a.org/"}}}, "must be https"),
        (
            {"rules": {}, "channels": {"a": {**HOOK, "url": "https://u:p@a.org/"}}},
            "user name or pa",
        ),
        ({"rules": {}, "channels": {"a": {**HOOK, "url": "https://a.org/ x"}}}, "'url' is not an"),
        ({"rules": {}, "channels": {"a": {**HOOK, "url": "https://a.org:x/"}}}, "'url' is not an"),
        ({"rules": {}, "channels": {"a": {**HOOK, "url": 5}}}, "'url' is not an address"),
        (
            {"rules": {}, "channels": {"a": {"type": "webhook", "secret": SECRET}}},
            "'url' is missing",
        ),
        ({"rules": {}, "channels": {"a": {**HOOK, "secret": "short"}}}, "at least 16 characters"),
        ({"rules": {}, "channels": {"a": {**HOOK, "secret": []}}}, "'secret' is empty"),
        ({"rules": {}, "channels": {"a": {**HOOK, "secret": "whsec_!!!!!!!!!!!!"}}}, "not base64"),
        ({"rules": {}, "channels": {"a": {"type": "slack"}}}, "'url' is missing"),
        ({"rules": {}, "channels": {"a": {**SLACK, "url": "http://a.org/"}}}, "must be https"),
        ({"rules": {}, "channels": {"a": {**SLACK, "secret": "x"}}}, "unknown option 'secret'"),
        ({"rules": {}, "channels": {"a": {**SLACK, "type": "teams", "to": 1}}}, "option 'to'"),
        ({"rules": {}, "channels": {"a": {"type": "pagerduty"}}}, "'key' is missing"),
        ({"rules": {}, "channels": {"a": {**PAGER, "key": "short"}}}, "32 letters and digits"),
        ({"rules": {}, "channels": {"a": {**PAGER, "severity": "bad"}}}, "one of critical, err"),
        ({"rules": {}, "channels": {"a": {**PAGER, "source": "a\nb"}}}, "one line of at most"),
        ({"rules": {}, "channels": {"a": {**PAGER, "url": "http://a.org/"}}}, "must be https"),
        ({"rules": {}, "channels": {"a": {**HOOK, "timeout": 600}}}, "at most 60 seconds"),
        ({"rules": {}, "channels": {"a": {**HOOK, "allow_http": 1}}}, "expected True or False"),
        ({"rules": {}, "channels": {}, "interval": 0.1}, "interval: must be at least a second"),
        ({"rules": {}, "channels": {}, "digest": None}, "digest: expected a duration"),
        ({"rules": {}, "channels": {}, "base_url": "a.org"}, "base_url: expected an address"),
        ({"rules": {}, "channels": {}, "base_url": "https://a.org/?x"}, "must not contain ? or #"),
        ({"rules": {}, "channels": {}, "errors": "no"}, "expected True or False"),
    ],
    ids=str,
)
def test_bad_settings_are_an_error_that_names_the_place(settings, value, text):
    [(id, message)] = found(settings, value)

    assert id == "deadletter.E003"
    assert message.startswith("DEADLETTER: ALERTS: ")
    assert text in message


@pytest.mark.parametrize(
    "channel",
    [
        {**HOOK, "secret": "not-to-be-seen"},
        {**HOOK, "secret": "whsec_not-to-be-seen!"},
        {**HOOK, "url": "http://a.org/not-to-be-seen"},
        {**HOOK, "url": "https://u:not-to-be-seen@a.org/"},
        "not-to-be-seen",
        {**SLACK, "url": "http://hooks.slack.com/not-to-be-seen"},
        {**PAGER, "key": "not-to-be-seen"},
    ],
    ids=str,
)
def test_a_secret_is_never_quoted(settings, channel):
    [(_, message)] = found(settings, {"rules": {}, "channels": {"a": channel}})

    assert "to-be-seen" not in message


def test_a_policy_does_not_show_its_secrets(settings):
    found(settings, {"rules": {}, "channels": {"a": HOOK}})

    assert SECRET not in repr(get_settings())
    assert "example.org/x" not in repr(get_settings())


@pytest.mark.parametrize("channel", [SLACK, {**SLACK, "type": "teams"}, PAGER], ids=str)
def test_the_secret_of_a_service_is_in_no_repr(settings, channel):
    found(settings, {"rules": {}, "channels": {"a": channel}})

    shown = repr(get_settings())
    assert "services/T0" not in shown
    assert PAGER["key"] not in shown


def test_a_mail_channel_that_would_reach_nobody_is_an_error(settings):
    settings.ADMINS = []
    value = {"rules": {}, "channels": {"ops": {"type": "email"}}}

    [(id, message)] = found(settings, value)

    assert id == "deadletter.E009"
    assert '["ops"]' in message

    settings.ADMINS = [("Ada", "ada@example.org")]
    assert found(settings, value) == []


def test_a_site_without_templates_is_told_so(settings):
    settings.TEMPLATES = []

    [(id, _)] = found(settings, {"rules": {}, "channels": MAIL})

    assert id == "deadletter.E010"
    assert found(settings, {"rules": {}, "channels": {"hook": HOOK}}) == []
