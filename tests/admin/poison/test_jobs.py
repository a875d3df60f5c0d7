"""The page of a long act: how far it is, how to pause and end it, and when nobody works on it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from deadletter import clock, lifecycle, operations
from deadletter.models import Act, BulkJob, Message, PoisonRecord, WorkerProcess
from deadletter.operations import PoisonFilter, bulk

from ..conftest import SCRIPT, url


@pytest.fixture
def job(poisoned) -> BulkJob:
    """A job that retries two records, not yet begun."""
    poisoned(), poisoned()
    wanted = PoisonFilter(name="mail").fixed("default")
    return operations.start_job(Act.RETRY, wanted, total=2, by="ann", why="deployed")


def alive(*queues: str, age: float = 0) -> None:
    now = clock.now("default")
    seen = now - timedelta(seconds=age)
    WorkerProcess.objects.create(
        name="w", host="h", pid=1, version="1", queues=list(queues), concurrency=1,
        started_at=seen, seen_at=seen,
    )  # fmt: skip


def see(browser: Client, job: BulkJob, **query):
    return browser.get(url("poisonrecord", "job", job.pk), query)


def control(browser: Client, job: BulkJob, act: str):
    return browser.post(url("poisonrecord", "job", job.pk), {"act": act}, follow=True)


def test_a_page_says_how_far_a_job_is(admin_client: Client, job) -> None:
    alive("deadletter")
    response = see(admin_client, job)
    html = response.content.decode()

    assert '<progress max="2" value="0"' in html
    assert "ann" in html
    assert "deployed" in html
    assert "name: <bdi>mail</bdi>" in html
    assert "No live worker" not in html
    assert '<noscript><meta http-equiv="refresh"' in html
    assert response.context["progress"].percent == 0


@pytest.mark.slow
def test_a_finished_job_stops_refreshing_and_says_what_became_of_the_messages(
    admin_client: Client, job
) -> None:
    while bulk.step_job(job.pk):
        pass

    response = see(admin_client, job)
    html = response.content.decode()

    # All are back in their queue, and what becomes of them is followed.
    assert response.context["progress"].percent == 100
    assert "2 wait or run" in html
    assert 'data-over="1"' not in html
    assert "http-equiv" in html
    assert 'value="pause"' not in html

    claimed = lifecycle.claim(["default"], limit=2, worker="w")
    lifecycle.complete(claimed.token, claimed.ids[:1])
    assert "1 succeeded" in see(admin_client, job).content.decode()
    lifecycle.complete(claimed.token, claimed.ids[1:])
    html = see(admin_client, job).content.decode()

    assert "2 succeeded" in html
    assert "0 wait or run" in html
    assert 'data-over="1"' in html
    assert "http-equiv" not in html


def test_a_record_taken_by_somebody_else_is_not_counted_as_done(admin_client: Client, job) -> None:
    operations.remove_poison(PoisonRecord.objects.latest("pk").pk)
    while bulk.step_job(job.pk):
        pass

    html = see(admin_client, job).content.decode()

    assert "1 record was gone before its turn came." in html


def test_the_part_that_is_refreshed_is_only_a_part(admin_client: Client, job) -> None:
    html = see(admin_client, job, part="1").content.decode()

    assert "<progress" in html
    assert "<html" not in html


@pytest.mark.parametrize(("queues", "age"), [((), 0), (("default",), 0), (("deadletter",), 60)])
def test_a_page_says_when_nobody_works_on_it(
    admin_client: Client, job, queues: tuple[str, ...], age: float
) -> None:
    alive(*queues, age=age)

    assert "No live worker serves the queue" in see(admin_client, job).content.decode()


def test_a_page_says_when_the_queue_is_paused(admin_client: Client, job) -> None:
    alive("deadletter")
    operations.pause("deadletter")

    assert "“deadletter” is paused" in see(admin_client, job).content.decode()


@pytest.mark.slow
def test_a_job_is_paused_resumed_and_cancelled(login, job) -> None:
    browser = login("view_poisonrecord", "retry_poison")

    assert "Paused." in control(browser, job, "pause").content.decode()
    assert bulk.step_job(job.pk) is False
    assert "Resumed." in control(browser, job, "resume").content.decode()
    assert "Cancelled" in control(browser, job, "cancel").content.decode()

    job.refresh_from_db()
    assert job.state == "cancelled"
    assert PoisonRecord.objects.count() == 2
    assert LogEntry.objects.count() == 3
    assert "The job is over" in control(browser, job, "resume").content.decode()
    assert "There is no such act" in control(browser, job, "explode").content.decode()


def test_only_who_may_do_the_act_may_control_its_job(login, job) -> None:
    browser = login("view_poisonrecord", "remove_poison")

    html = see(browser, job).content.decode()

    assert 'value="pause"' not in html
    for act in ("pause", "resume", "cancel"):
        assert control(browser, job, act).status_code == 403
    job.refresh_from_db()
    assert job.state == "running"


def test_looking_at_a_job_does_not_move_it(admin_client: Client, job) -> None:
    before = BulkJob.objects.values().get()

    see(admin_client, job, act="cancel")
    see(admin_client, job, part="1")

    assert BulkJob.objects.values().get() == before
    assert Message.objects.count() == 1


def test_the_list_shows_recent_jobs_and_their_outcomes(admin_client: Client, job) -> None:
    while bulk.step_job(job.pk):
        pass

    html = admin_client.get(url("poisonrecord", "jobs")).content.decode()

    assert f"#{job.pk} retry poison" in html
    assert "0 died again of the same cause" in html
    assert "ann" in html


def test_an_empty_list_says_so(admin_client: Client) -> None:
    assert (
        "No act was long enough" in admin_client.get(url("poisonrecord", "jobs")).content.decode()
    )


def test_a_job_that_does_not_exist_is_not_found(admin_client: Client) -> None:
    for id in (1, 2**70):
        assert admin_client.get(url("poisonrecord", "job", id)).status_code == 404


def test_hostile_reasons_and_filters_are_text(admin_client: Client, poisoned) -> None:
    poisoned()
    wanted = PoisonFilter(name=SCRIPT).fixed("default")
    job = operations.start_job(Act.REMOVE, wanted, total=0, by=SCRIPT, why=SCRIPT)

    for page in (url("poisonrecord", "jobs"), url("poisonrecord", "job", job.pk)):
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html
