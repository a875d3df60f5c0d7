"""The views of a site for scrapers, and the callers that they admit."""

from __future__ import annotations

import sys

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection, connections
from django.test import Client

from deadletter import conf, send
from deadletter.metrics import cache
from deadletter.metrics.depths import Depths

from .scrapes import Answer

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.metrics.urls")]

PATH = "/deadletter/metrics"
TOKEN = "0123456789abcdef"


@pytest.fixture
def token(settings) -> dict[str, str]:
    settings.DEADLETTER = {**settings.DEADLETTER, "METRICS_TOKEN": TOKEN}
    return {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}


def staff(*permissions: str, **fields: bool) -> Client:
    user = User.objects.create_user("u", **{"is_staff": True, **fields})
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def admit_tuesdays(request: object) -> bool:
    return request.GET.get("day") == "tuesday"


def answer(response: object) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def test_nobody_is_answered_by_default(client):
    response = client.get(PATH)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert b"deadletter_" not in response.content


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer 0123456789abcdeF",
        "Bearer 0123456789abcdef0",
        "Basic 0123456789abcdef",
        TOKEN,
        "Bearer é\u0100",
    ],
)
def test_a_wrong_token_is_refused(client, token, header):
    assert client.get(PATH, HTTP_AUTHORIZATION=header).status_code == 401


@pytest.mark.parametrize("header", ["Bearer ", "Bearer None", "Bearer x"])
def test_without_a_token_in_the_settings_none_is_right(client, header):
    assert client.get(PATH, HTTP_AUTHORIZATION=header).status_code == 401


def test_the_token_is_enough(client, token):
    send("job")

    found = answer(client.get(PATH, **token)).samples

    assert found("deadletter_up") == 1
    assert found("deadletter_queue_depth", queue="default", state="pending") == 1
    # What only workers know is not here.
    assert not [name for name in found.names if "duration" in name]


def test_staff_who_may_see_queues_are_answered():
    assert staff("view_queue").get(PATH).status_code == 200


def test_others_who_are_logged_in_are_refused():
    assert staff("view_poisonrecord").get(PATH).status_code == 403
    User.objects.all().delete()
    assert staff("view_queue", is_staff=False).get(PATH).status_code == 403


def test_a_rule_of_the_sites_own_replaces_both(settings, client, token):
    rule = "tests.metrics.test_view.admit_tuesdays"
    settings.DEADLETTER = {**settings.DEADLETTER, "METRICS_ACCESS": rule}

    assert client.get(PATH, {"day": "tuesday"}).status_code == 200
    assert client.get(PATH, **token).status_code == 401
    assert staff("view_queue").get(PATH).status_code == 403


def test_a_site_that_wants_a_login_everywhere_still_admits_the_token(settings, client, token):
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]

    assert client.get(PATH, **token).status_code == 200
    assert client.get(PATH).status_code == 401


@pytest.mark.parametrize("method", ["post", "put", "delete", "head"])
def test_only_get_is_answered(client, token, method):
    assert getattr(client, method)(PATH, **token).status_code == 405


def test_openmetrics_is_had_by_asking_for_it(client, token):
    send("job")
    plain = answer(client.get(PATH, **token))
    modern = answer(client.get(PATH, headers={"accept": "application/openmetrics-text"}, **token))

    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.samples.names == plain.samples.names
    assert "no-cache" in plain.headers["cache-control"]


@pytest.mark.parametrize(
    "accept", ["*/*", "application/openmetrics-text; version=xyz", "text/plain;version=;;q=b", ",;"]
)
def test_no_accept_header_makes_it_fail(client, token, accept):
    found = answer(client.get(PATH, headers={"accept": accept}, **token))

    assert found.samples("deadletter_up") == 1


def test_without_a_database_it_says_so(client, token, monkeypatch):
    def refuse(using: str) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(cache, "read_depths", refuse)

    found = answer(client.get(PATH, **token)).samples

    assert found.all == {("deadletter_up", frozenset()): 0}


@pytest.mark.django_db(transaction=True)
def test_a_site_with_a_transaction_a_request_is_answered_outside_of_it(client, token, monkeypatch):
    """Inside, a reading could not be left when it hangs, and an error would break the answer."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    inside = []

    def look(using: str) -> Depths:
        inside.append(connections[using].in_atomic_block)
        return Depths()

    monkeypatch.setattr(cache, "read_depths", look)

    assert answer(client.get(PATH, **token)).samples("deadletter_up") == 1
    assert inside == [False]


def test_without_prometheus_client_it_says_what_is_missing(client, token, monkeypatch):
    monkeypatch.delitem(sys.modules, "deadletter.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)

    response = client.get(PATH, **token)

    assert response.status_code == 503
    assert b"pip install 'django-deadletter[metrics]'" in response.content


@pytest.mark.django_db(databases=["default", "second"])
def test_another_database_can_be_told_of(client, token):
    send("job", using="second")

    found = answer(client.get("/second", **token)).samples

    assert found("deadletter_queue_depth", queue="default", state="pending") == 1


@pytest.mark.parametrize("value", ["short", 5, None])
def test_a_token_that_could_be_guessed_is_refused_and_not_repeated(settings, value):
    settings.DEADLETTER = {"METRICS_TOKEN": value}

    [problem] = conf.problems()

    assert problem.text == "METRICS_TOKEN: expected a text of at least 16 characters"


@pytest.mark.parametrize("value", [5, "no.such.function"])
def test_a_rule_that_cannot_be_called_is_refused(settings, value):
    settings.DEADLETTER = {"METRICS_ACCESS": value}

    [problem] = conf.problems()

    assert problem.text.startswith("METRICS_ACCESS: ")
