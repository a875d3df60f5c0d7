"""Workers add failures to groups, adopt the dead of earlier releases, and say what they run."""

from __future__ import annotations

import pytest

from deadletter import send
from deadletter.lifecycle.groups import has_changes
from deadletter.models import (
    ApplicationRelease,
    FailureGroup,
    GroupChange,
    GroupTag,
    PoisonRecord,
    WorkerProcess,
)
from deadletter.tasks import task
from deadletter.worker import housekeeper
from tests.patience import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def broken(message):
    raise ValueError("boom")


async def broken_async(message):
    raise ValueError("boom")


@pytest.mark.parametrize("function", [broken, broken_async])
def test_a_worker_with_drain_leaves_complete_groups(run, handles, policy, function):
    policy(max_attempts=1)
    handles("mail", function, tags=("tenant",))
    for n in range(30):
        send("mail", {"tenant": n % 3})
    run()

    assert not has_changes()
    group = FailureGroup.objects.get()
    assert (group.failures, group.deaths, group.queue) == (30, 30, "default")
    assert {row.value: row.failures for row in GroupTag.objects.all()} == {
        "0": 10,
        "1": 10,
        "2": 10,
    }


def test_a_running_worker_adds_failures_within_its_rounds(running, handles, monkeypatch):
    monkeypatch.setattr(housekeeper, "TICK", 0.01)
    handles("mail", broken)
    with running(poll=0.01):
        send("mail", {})
        wait_until(lambda: FailureGroup.objects.filter(failures=1).exists())
        assert GroupChange.objects.count() == 0


def test_a_worker_adopts_the_dead_of_earlier_releases(stepped, run, handles, policy):
    policy(max_attempts=1)
    handles("mail", broken)
    send("mail", {})
    run()
    FailureGroup.objects.all().delete()

    process = stepped()
    process._housekeeper._fold_groups()
    assert FailureGroup.objects.get().deaths == 1
    process._housekeeper._fold_groups()
    assert process._housekeeper._adopted is None
    assert FailureGroup.objects.get().deaths == 1
    assert PoisonRecord.objects.count() == 1


def test_a_worker_says_which_release_it_runs(stepped, settings):
    settings.DEADLETTER = {"RELEASE": "2.7.0"}
    process = stepped()
    process._housekeeper.beat()

    assert WorkerProcess.objects.get().release == "2.7.0"
    row = ApplicationRelease.objects.get()
    assert (row.name, row.first_seen_at) == ("2.7.0", row.last_seen_at)


def test_a_worker_without_a_release_names_none(stepped, settings):
    settings.DEADLETTER = {"RELEASE": None}
    process = stepped()
    process._housekeeper.beat()

    assert WorkerProcess.objects.get().release == ""
    assert ApplicationRelease.objects.count() == 0


@task(tags=["user_id", "card_number", "options.plan"])
def welcome(user_id, options=None, *, card_number=""):
    raise ValueError("boom")


def test_the_tags_of_a_task_are_its_arguments(run, policy):
    policy(max_attempts=1)
    welcome.enqueue(7, {"plan": "free"}, card_number="4111")
    run()

    rows = {(row.key, row.value) for row in GroupTag.objects.all()}
    assert rows == {("user_id", "7"), ("options.plan", "free")}
