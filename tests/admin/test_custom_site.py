"""Every page works in an AdminSite of the project's own, and its links stay there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from deadletter import lifecycle, operations, send, start
from deadletter.lifecycle import Failure
from deadletter.models import Message, PoisonRecord, Queue
from tests.sample import tasks

from .two_sites import MODELS

PAGES = [
    "",
    "poisonrecord/",
    "poisonrecord/records/",
    "poisonrecord/matrix/",
    "poisonrecord/jobs/",
    "poisonrecord/{poison}/change/",
    "poisonrecord/{poison}/retry/",
    "poisonrecord/{poison}/edit/",
    "poisonrecord/{poison}/remove/",
    "poisonrecord/bulk/retry/",
    "poisonrecord/groups/{group}/",
    "poisonrecord/groups/act/acknowledge/?group={group}",
    "poisonrecord/groups/act/merge/?group={group}",
    "poisonrecord/tags/?key=tenant&value=acme",
    "message/",
    "message/{message}/change/",
    "message/act/remove/?ids={message}",
    "message/streams/",
    "message/streams/retry/{poison}/",
    "queue/",
    "queue/{queue}/change/",
    "queue/{queue}/pause/",
    "instance/",
    "instance/order-1/change/",
    "instance/order-1/cancel/",
    "workerprocess/",
    "breaker/",
    "breaker/hold/",
    "schedule/",
    "schedule/calendar/",
    "schedule/add/",
    "schedule/{schedule}/change/",
    "schedule/{schedule}/edit/",
    "schedule/{schedule}/run/",
    "schedule/{schedule}/pause/",
    "count/",
    "auditentry/",
    "auditentry/{entry}/change/",
    "result/",
    "result/{result}/change/",
    "message/{result}/change/",
]


@pytest.fixture
def rows(poisoned, settings) -> dict[str, Any]:
    settings.ROOT_URLCONF = "tests.admin.two_sites"
    queue = Queue.objects.create(name="ledger", stream_policy="halt")
    failed = {"tags": [("tenant", "acme")], "release": "2.7.1"}
    record = poisoned("book", {"n": 1}, queue="ledger", stream="s", failed=failed)
    operations.write_note(record.fingerprint, "Ask the carrier.", by="ada")
    send("book", queue="ledger", stream="s")
    first, second = send("a", stream="slow"), send("b", stream="slow")
    batch = lifecycle.claim(limit=1, worker="w", queues=["default"])
    lifecycle.fail(batch.token, [Failure(first.pk, error="no")])
    lifecycle.claim(limit=5, worker="w")
    start("order", instance="order-1")
    gone = send("c")
    operations.remove(gone.pk, by="ada")
    entry = operations.trail(gone.pk)[0].entry_id
    result = tasks.add.using(queue_name="ledger").enqueue(1).id
    operations.cancel(result)
    found = {
        "poison": record.pk,
        "group": record.fingerprint,
        "message": second.pk,
        "queue": queue.pk,
        "entry": entry,
    }
    schedule = operations.create_schedule("nightly", message="c", interval="1h")
    operations.run_schedule("nightly", by="ada")
    return {**found, "result": result, "schedule": schedule.pk}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_stay_in_its_site(admin_client: Client, rows, page: str) -> None:
    response = admin_client.get("/ops/deadletter/" + page.format(**rows))

    assert response.status_code == 200
    links = re.findall(r'(?:href|action|data-part)="([^"]+)"', response.content.decode())
    assert [link for link in links if link.startswith("/ops/deadletter/")]
    assert [link for link in links if link.startswith("/admin/")] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_site_may_have_one_of_the_models_only(admin_client: Client, rows, page: str) -> None:
    models = [page.partition("/")[0]] if page else [model._meta.model_name for model in MODELS]

    for model in models:
        response = admin_client.get(f"/only-{model}/deadletter/" + page.format(**rows))

        assert response.status_code == 200
        assert 'href="/admin/' not in response.content.decode()


@pytest.mark.parametrize(
    "place",
    [
        "message/act/remove/?ids={message}",
        "message/streams/remove/{poison}/",
        "queue/{queue}/pause/",
        "poisonrecord/{poison}/retry/",
    ],
)
def test_an_act_leads_back_into_its_site(admin_client: Client, rows, place: str) -> None:
    here = "/ops/deadletter/" + place.format(**rows)

    response = admin_client.post(here, {"ids": rows["message"], "message": rows["poison"]})

    assert response.status_code in (200, 302)
    if response.status_code == 302:
        assert response["Location"].startswith("/ops/")
    assert Message.objects.count() + PoisonRecord.objects.count() > 0
