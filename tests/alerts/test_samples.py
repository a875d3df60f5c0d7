"""The samples of docs/alerts.md do what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deadletter import testing
from deadletter.alerts import send_test
from deadletter.checks import check_settings
from deadletter.conf import get_settings
from tests.operations.records import dead
from tests.test_docs import ROOT, blocks, names, table

from .conftest import notices
from .servers import http_server

PAGE = ROOT / "docs" / "alerts.md"


def sample(start: str) -> dict[str, Any]:
    [text] = [block for block in blocks(PAGE) if block.startswith(start)]
    space: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), space)
    return space


def test_the_settings_pass_the_checks_and_show_every_rule(settings):
    settings.DEADLETTER = sample("# settings.py")["DEADLETTER"]

    assert check_settings(None) == []
    policy = get_settings().alerts
    assert policy is not None
    assert {rule.kind for rule in policy.rules} == {names(row[0])[0] for row in table(PAGE, "rule")}


def test_the_receiver_takes_a_notice_once_and_refuses_what_is_forged_or_old(clock, rules):
    space = sample("# A receiver")
    secret = space["SECRET"].decode()
    with http_server() as server:
        rules(channels={"hook": {"type": "webhook", "url": server.url, "secret": secret}})
        send_test()
        assert testing.drain().completed == 1
    [request] = server.requests
    receive, headers = space["receive"], request.headers

    assert receive(headers, request.body) == request.notice
    assert receive(headers, request.body) is None
    with pytest.raises(ValueError, match="not signed by us"):
        receive(headers, request.body + b" ")
    with pytest.raises(ValueError, match="not signed by us"):
        receive({**headers, "webhook-timestamp": "1"}, request.body)
    space["time"].time, real = lambda: 1e10, space["time"].time
    try:
        with pytest.raises(ValueError, match="too old"):
            receive(headers, request.body)
    finally:
        space["time"].time = real


def test_the_notice_has_the_keys_of_a_real_one(clock, rules, decide):
    rules(new_group=True)
    decide()
    dead()
    decide()
    [shown] = [json.loads(block) for block in blocks(PAGE, "json")]

    [real] = notices()

    assert set(shown) == {*real, "text"}
    assert set(shown["alerts"][0]) == set(real["alerts"][0])
    assert set(shown["alerts"][0]["detail"]) == set(real["alerts"][0]["detail"])
