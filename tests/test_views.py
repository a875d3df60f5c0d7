"""The page a load balancer asks: cheap, honest, silent towards strangers, never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import Client, RequestFactory
from django.urls import path, reverse

from deadletter import send
from deadletter.models import WorkerProcess
from deadletter.views import health
from tests.operations.records import dead
from tests.silence import silent_database
from tests.test_docs import ROOT, blocks

TOKEN = "0123456789abcdef-of-tests"

urlpatterns = [
    path("health", health),
    path("strict", health, {"max_wait": 10, "min_workers": 0}),
    path("silent", health, {"using": "silent", "timeout": 0.2}),
]

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture
def worker(clock) -> None:
    WorkerProcess.objects.create(
        name="w1",
        host="h1",
        pid=1,
        version="1",
        queues=["default"],
        concurrency=8,
        started_at=clock.now,
        seen_at=clock.now,
    )


@pytest.fixture
def token(settings) -> dict[str, str]:
    settings.DEADLETTER = {**settings.DEADLETTER, "METRICS_TOKEN": TOKEN}
    return {"Authorization": f"Bearer {TOKEN}"}


def test_healthy_is_200_and_says_nothing_else(client: Client, worker) -> None:
    answer = client.get("/health")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer["Content-Type"] == "application/json"
    assert "no-store" in answer["Cache-Control"]


def test_failing_is_503_and_says_nothing_else(client: Client, clock) -> None:
    send("secret.name")

    answer = client.get("/health")

    assert (answer.status_code, answer.json()) == (503, {"status": "failing"})
    assert "no-store" in answer["Cache-Control"]


def test_head_is_answered_without_a_body(client: Client, worker) -> None:
    answer = client.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")

    WorkerProcess.objects.all().delete()
    answer = client.head("/health")
    assert (answer.status_code, answer.content) == (503, b"")


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_else_is_allowed(client: Client, db, method: str) -> None:
    assert getattr(client, method)("/health").status_code == 405


def test_the_token_shows_why(client: Client, token, clock) -> None:
    send("mail")
    clock.advance(7)

    answer = client.get("/health", headers=token)

    assert answer.status_code == 503
    assert answer.json() == {
        "status": "failing",
        "ok": False,
        "problems": [
            "no worker was seen in the last 30 s; is `manage.py run_worker` running?",
            "queue default has messages due and no live worker serves it",
        ],
        "warnings": [],
        "workers": [],
        "queues": [{"name": "default", "waited": 7.0, "workers": 0}],
        "brokers": [],
        "breakers": [],
        "halted_streams": 0,
        "poison": 0,
        "reachable": True,
    }


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "é ü"]
)
def test_a_wrong_token_shows_what_strangers_see(client: Client, token, worker, given: str) -> None:
    answer = client.get("/health", headers={"Authorization": given})

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_no_token_opens_a_site_that_has_none(client: Client, worker) -> None:
    assert client.get("/health", headers={"Authorization": "Bearer "}).json() == {"status": "ok"}


def test_staff_who_may_view_queues_see_why(client: Client, worker) -> None:
    user = User.objects.create_user("ann", is_staff=True)
    client.force_login(user)
    assert client.get("/health").json() == {"status": "ok"}

    user.user_permissions.add(Permission.objects.get(codename="view_queue"))

    assert client.get("/health").json()["workers"] == ["w1"]
    user.is_staff = False
    user.save()
    assert client.get("/health").json() == {"status": "ok"}


def test_limits_come_from_the_path_and_from_the_query(client: Client, worker, clock, token) -> None:
    send("mail")
    clock.advance(11)
    WorkerProcess.objects.update(seen_at=clock.now)

    def status(address: str) -> int:
        return client.get(address, headers=token).status_code

    assert status("/health") == 200
    assert status("/health?max_wait=10") == 503
    assert status("/health?max_wait=11.5") == 200
    assert status("/strict") == client.get("/strict").status_code == 503
    assert status("/strict?max_wait=12") == 200
    assert status("/health?min_workers=2") == 503


def test_deaths_of_the_window_are_counted(client: Client, clock, token) -> None:
    dead()
    limits = "/health?min_workers=0&max_poison=0&window=60"

    assert client.get(limits, headers=token).status_code == 503
    clock.advance(60)
    assert client.get(limits, headers=token).status_code == 200


@pytest.mark.parametrize(
    "query",
    ["max_poison=0", "max_poison=1", "max_wait=1", "min_workers=2", "max_age=1", "window=9"],
)
def test_limits_of_a_stranger_tell_nothing(client: Client, worker, query: str) -> None:
    dead()

    answers = [
        client.get(f"/health?{query}"),
        client.get(f"/health?{query}", headers={"Authorization": "Bearer wrong"}),
        client.head(f"/health?{query}"),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert "status" not in answers[0].json()
    assert "METRICS_TOKEN" in answers[0].json()["error"]
    assert client.get("/health").json() == {"status": "ok"}


def test_staff_who_may_view_queues_choose_limits(client: Client, worker) -> None:
    dead()
    user = User.objects.create_user("ann", is_staff=True)
    client.force_login(user)
    assert client.get("/health?max_poison=0").status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_queue"))

    assert client.get("/health?max_poison=0").status_code == 503
    assert client.get("/health?max_poison=1").status_code == 200
    assert client.get("/strict?max_wait=12").json()["status"] == "ok"


@pytest.mark.parametrize(
    "query",
    [
        "max_wait=",
        "max_wait=soon",
        "max_wait=-1",
        "max_wait=nan",
        "max_wait=inf",
        "max_wait=1e9",
        "max_wait=1_0",
        "max_wait=\u0661",
        "max_wait=9999999999",
        "max_wait=1&max_wait=2",
        "max_poison=10001",
        "max_poison=1.5",
        "max_poison=99999999999999999999",
        "min_workers=-1",
        "max_waits=5",
        "using=second",
        "timeout=600",
        "worker=w1",
        "<script>=1",
        "max_wait=%00",
        "max_wait=1%0a",
    ],
)
def test_nonsense_is_400_and_not_repeated(client: Client, worker, query: str) -> None:
    answer = client.get(f"/health?{query}")

    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert "script" not in answer.text
    assert "no-store" in answer["Cache-Control"]


def test_no_login_is_asked_for(client: Client, worker, settings) -> None:
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]

    assert client.get("/health").status_code == 200


def test_a_failing_probe_sends_nobody_an_email(client: Client, clock, settings, caplog) -> None:
    settings.ADMINS = ["ops@example.org"]
    settings.DEBUG = False

    for _ in range(3):
        assert client.get("/health").status_code == 503

    assert not [record for record in caplog.records if record.name == "django.request"]
    assert mail.outbox == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_is_503_in_time(client: Client, token, settings) -> None:
    user = User.objects.create_superuser("root")
    client.force_login(user)
    with silent_database():
        stranger = client.get("/silent?max_poison=1")
        known = client.get("/silent", headers=token)

    # A superuser's session is not even looked for: it may lie in the database that is away.
    assert (stranger.status_code, stranger.json()) == (503, {"status": "failing"})
    assert known.status_code == 503
    assert known.json()["problems"] == ["the database 'silent' did not answer within 0.2 s"]


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_begun_before_the_question(client: Client, settings, worker) -> None:
    from django.db import connections

    before = connections["default"].settings_dict["ATOMIC_REQUESTS"]
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert health._non_atomic_requests >= {"default", "second"}  # type: ignore[attr-defined]
        assert client.get("/health").status_code == 200
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = before


def test_a_session_that_cannot_be_read_makes_nobody(client: Client, worker, monkeypatch) -> None:
    client.force_login(User.objects.create_superuser("root"))
    assert client.get("/health").json()["ok"]

    def fail(*args: Any) -> None:
        raise ConnectionError("the cache of the sessions is away")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)

    answer = client.get("/health")

    assert (answer.status_code, json.loads(answer.content)) == (200, {"status": "ok"})


def test_a_stranger_costs_five_statements(
    client: Client, worker, django_assert_num_queries
) -> None:
    with django_assert_num_queries(5):
        client.get("/health?max_wait=60&max_poison=100")


def test_the_urls_of_the_documentation_work(client: Client, worker) -> None:
    own: dict[str, Any] = {}
    site: dict[str, Any] = {}
    first, second, *_ = blocks(ROOT / "docs" / "watching.md")
    exec(first, site)
    exec(second, own)

    assert [p.pattern._route for p in site["urlpatterns"]] == ["deadletter/"]
    for pattern in own["urlpatterns"][:1]:
        request = RequestFactory().get("/")
        assert pattern.callback(request, **pattern.default_args).status_code == 200


@pytest.mark.urls("project.urls")
def test_the_demonstration_site_has_the_page(client: Client, worker) -> None:
    assert client.get(reverse("deadletter:health")).json() == {"status": "ok"}
