"""
Who may do what to poison: every act, every permission, also by a request made by hand.

The permissions are separate: a button that is not allowed is absent, its address refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import signing
from django.test import Client

from deadletter import operations, send
from deadletter.admin.poison import plan
from deadletter.models import Act, AuditEntry, BulkJob, Message, PoisonRecord
from deadletter.operations import PoisonFilter

from ..conftest import url

pytestmark = pytest.mark.slow

RIGHTS = ("view_poisonrecord", "view_payload", "retry_poison", "edit_payload", "remove_poison")
VIEW, PAYLOAD, RETRY, EDIT, REMOVE = RIGHTS


def signed(browser: Client, act: str, record: PoisonRecord) -> dict[str, str]:
    """Sign as the site would: the permission alone must refuse."""
    user = browser.session["_auth_user_id"]
    made = {"act": act, "ids": [record.pk], "filter": None, "counted": [1, False], "user": user}
    return {"plan": signing.dumps(made, salt=plan._SALT, compress=True)}


Request = Callable[[Client, PoisonRecord, BulkJob], Any]

#: Every address: the permissions it asks for, and the request.
REQUESTS: dict[str, tuple[set[str], Request]] = {
    "groups": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord"))),
    "records": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord", "records"))),
    "matrix": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord", "matrix"))),
    "jobs": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord", "jobs"))),
    "job": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord", "job", j.pk))),
    "record": ({VIEW}, lambda c, r, j: c.get(url("poisonrecord", "change", r.pk))),
    "payload": ({VIEW, PAYLOAD}, lambda c, r, j: c.get(url("poisonrecord", "payload", r.pk))),
    "export": ({VIEW}, lambda c, r, j: c.post(url("poisonrecord", "export"), {"format": "csv"})),
    "ask retry": ({VIEW, RETRY}, lambda c, r, j: c.get(url("poisonrecord", "retry", r.pk))),
    "retry": ({VIEW, RETRY}, lambda c, r, j: c.post(url("poisonrecord", "retry", r.pk))),
    "ask edit": (
        {VIEW, PAYLOAD, RETRY, EDIT},
        lambda c, r, j: c.get(url("poisonrecord", "edit", r.pk)),
    ),
    "edit": (
        {VIEW, PAYLOAD, RETRY, EDIT},
        lambda c, r, j: c.post(
            url("poisonrecord", "edit", r.pk), {"payload": "[7]", "confirmed": "1"}
        ),
    ),
    "ask remove": ({VIEW, REMOVE}, lambda c, r, j: c.get(url("poisonrecord", "remove", r.pk))),
    "remove": ({VIEW, REMOVE}, lambda c, r, j: c.post(url("poisonrecord", "remove", r.pk))),
    "ask retry of many": (
        {VIEW, RETRY},
        lambda c, r, j: c.post(url("poisonrecord", "bulk", "retry"), {"ids": [r.pk]}),
    ),
    "retry of many": (
        {VIEW, RETRY},
        lambda c, r, j: c.post(url("poisonrecord", "bulk", "retry"), signed(c, "retry", r)),
    ),
    "ask removal of many": (
        {VIEW, REMOVE},
        lambda c, r, j: c.post(url("poisonrecord", "bulk", "remove"), {"ids": [r.pk]}),
    ),
    "removal of many": (
        {VIEW, REMOVE},
        lambda c, r, j: c.post(url("poisonrecord", "bulk", "remove"), signed(c, "remove", r)),
    ),
    "pause a retry": (
        {VIEW, RETRY},
        lambda c, r, j: c.post(url("poisonrecord", "job", j.pk), {"act": "pause"}),
    ),
}
#: Requests that change something when they are allowed.
CHANGES = {"retry", "edit", "remove", "retry of many", "removal of many", "pause a retry"}

every_set = pytest.mark.parametrize(
    "granted",
    [set(some) for n in range(6) for some in itertools.combinations(RIGHTS, n)],
    ids=lambda some: "+".join(sorted(some)) or "none",
)


@pytest.fixture
def scene(poisoned) -> tuple[PoisonRecord, BulkJob]:
    """One record, and a job that would retry nothing."""
    record = poisoned("mail", {"a": 1})
    wanted = PoisonFilter(name="nothing").fixed("default")
    return record, operations.start_job(Act.RETRY, wanted, total=0, by="ann")


def state() -> tuple[Any, ...]:
    return (
        list(PoisonRecord.objects.order_by("pk").values()),
        list(Message.objects.order_by("pk").values()),
        list(BulkJob.objects.values()),
        AuditEntry.objects.count(),
    )


@every_set
def test_every_request_asks_for_its_permissions_and_no_others(
    login, scene, granted: set[str]
) -> None:
    record, job = scene
    browser = login(*granted)
    before = state()

    for name, (needed, request) in REQUESTS.items():
        if name in CHANGES and needed <= granted:
            continue  # below: what is allowed changes the scene
        status = request(browser, record, job).status_code
        assert (status == 403) == (not needed <= granted), (name, status)
        if needed <= granted:
            assert status == 200, (name, status)
        assert state() == before, name


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_permissions_of_an_act_are_enough_for_it(login, scene, name: str) -> None:
    record, job = scene
    needed, request = REQUESTS[name]
    before = state()

    response = request(login(*needed), record, job)

    assert response.status_code == 302
    assert state() != before
    assert LogEntry.objects.get().user.username == "operator"


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_nobody_gets_anywhere_without_being_staff(scene, name: str) -> None:
    record, job = scene
    _, request = REQUESTS[name]
    user = User.objects.create_user("visitor")
    user.user_permissions.set(Permission.objects.all())
    visitor = Client()
    visitor.force_login(user)
    before = state()

    answer = request(visitor, record, job)
    assert (answer.status_code, "/login/" in answer.url) == (302, True)
    if "many" not in name:
        assert request(Client(), record, job).status_code == 302
    assert state() == before


@pytest.mark.parametrize("name", sorted(CHANGES | {"export"}))
def test_a_request_without_the_token_of_the_form_is_refused(
    admin_user: User, scene, name: str
) -> None:
    record, job = scene
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)
    before = state()

    assert REQUESTS[name][1](browser, record, job).status_code == 403
    assert state() == before


def test_get_changes_nothing_whatever_it_is_given(admin_client: Client, scene) -> None:
    record, job = scene
    words = {"confirmed": "1", "payload": "[7]", "act": "cancel", "why": "x"}
    pages = [
        url("poisonrecord"),
        *(url("poisonrecord", page) for page in ("records", "matrix", "jobs", "export")),
        *(
            url("poisonrecord", page, record.pk)
            for page in ("change", "retry", "edit", "remove", "payload", "history", "delete")
        ),
        *(url("poisonrecord", "bulk", act) for act in ("retry", "remove")),
        url("poisonrecord", "job", job.pk),
    ]
    before = state()

    for page in pages:
        for more in ({}, {"ids": record.pk}, signed(admin_client, "retry", record)):
            admin_client.get(page, {**words, **more})
            admin_client.head(page, {**words, **more})

    assert state() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    "granted",
    [set(some) for n in range(5) for some in itertools.combinations(RIGHTS[1:], n)],
    ids=lambda some: "+".join(sorted(some)) or "none",
)
def test_a_button_is_there_for_those_who_may_press_it(login, scene, granted: set[str]) -> None:
    record, job = scene
    browser = login(VIEW, *granted)

    def has(page: str, target: str) -> bool:
        return f'"{target}' in browser.get(page).content.decode()

    here, many = url("poisonrecord", "change", record.pk), url("poisonrecord", "records")
    assert has(here, url("poisonrecord", "retry", record.pk)) == (RETRY in granted)
    assert has(here, url("poisonrecord", "remove", record.pk)) == (REMOVE in granted)
    assert has(here, url("poisonrecord", "payload", record.pk)) == (PAYLOAD in granted)
    assert has(here, url("poisonrecord", "edit", record.pk)) == ({PAYLOAD, RETRY, EDIT} <= granted)
    for page in (many, url("poisonrecord")):
        assert has(page, url("poisonrecord", "bulk", "retry")) == (RETRY in granted)
        assert has(page, url("poisonrecord", "bulk", "remove")) == (REMOVE in granted)
    assert has(url("poisonrecord", "job", job.pk), "pause") == (RETRY in granted)


def test_an_act_that_is_none_is_not_found(admin_client: Client, scene) -> None:
    for act in ("purge", "export", "delete", "release"):
        assert admin_client.post(url("poisonrecord", "bulk", act)).status_code == 404


def test_a_message_that_waits_is_not_retried_as_poison(admin_client: Client, db) -> None:
    message = send("mail")

    response = admin_client.post(url("poisonrecord", "retry", message.pk), follow=True)

    assert "is gone" in response.content.decode()
