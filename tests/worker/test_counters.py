"""Counters of several processes, with restarts and kills, against what the handlers noted."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
from django.db.models import Sum

from deadletter import FailureReason, Outgoing, send_many
from deadletter.lifecycle import sweep
from deadletter.models import Count, Message, Queue
from tests.processes import Workers, wait_until

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def total(what: str, **which: object) -> int:
    return Count.objects.filter(**which).aggregate(n=Sum(what))["n"] or 0


def test_totals_survive_kills_and_add_up_over_processes(workers: Workers):
    Queue.objects.filter(name="default").update(backoff_base=timedelta(0))
    flaky = send_many([Outgoing("sample.work", {"fail": 1}) for _ in range(60)])
    worker = workers.start("--processes", 2, "--poll", 0.05, "--concurrency", 2)
    wait_until(lambda: not Message.objects.exists(), why=worker.text)

    held = send_many([Outgoing("sample.work", {"gate": "a"}) for _ in range(4)])
    workers.wait_for("start", count=2 + 2 * len(flaky))
    victim = workers.journal("start")[-1]["pid"]
    os.kill(victim, signal.SIGKILL)
    worker.wait_for("worker_died")
    workers.open("a")
    wait_until(lambda: not Message.objects.exists(), why=worker.text)
    assert worker.stop() == 0
    more = send_many([Outgoing("sample.work", {}) for _ in range(30)])
    workers.drain("--concurrency", 2)

    everything = {*flaky, *held, *more}
    finished = {line["id"] for line in workers.journal("finish")}
    begun = [(line["id"], line["attempt"]) for line in workers.journal("start", pid=victim)]
    ended = {line["id"] for line in workers.journal("finish", pid=victim)}
    cut_off = [id for id, _ in begun if id in held and id not in ended]
    assert finished == everything
    assert total("sent") == total("completed") == len(everything)
    assert total("failed", reason=FailureReason.HANDLER_EXCEPTION) == len(flaky)
    assert total("failed", reason=FailureReason.WORKER_LOST) == len(set(cut_off)) > 0
    assert len(set(Count.objects.values_list("writer", flat=True))) > 3
    before = total("completed"), total("failed"), total("seconds")
    sweep()
    assert (total("completed"), total("failed"), total("seconds")) == pytest.approx(before)
