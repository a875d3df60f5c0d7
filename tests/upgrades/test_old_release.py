"""
The old release on the schema of this one, alone and beside it: nothing lost, nothing stuck.

As in a rolling deployment: the database is migrated first, then processes are replaced one by one.
Old statements name none of the new columns, so a column that the database itself cannot fill
stops every old producer; these tests are red then.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from datetime import timedelta

import pytest

from deadletter import instance_status
from deadletter.models import Instance, Message, PoisonRecord, Queue
from tests.processes import Workers, wait_until

from .release import Release

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

STREAMS, LENGTH, PLAIN, ORDERS = 5, 12, 40, 6

#: What both releases send, under names of their own.
PRODUCE = f"""
from deadletter import Outgoing, raise_event, send, send_many, start
who = sys.argv[1]
ids = send_many([Outgoing("sample.work", {{"n": n}}) for n in range({PLAIN // 2})])
for n in range({PLAIN // 2}):
    ids.append(send("sample.work", {{"n": n}}, key=f"{{who}}-{{n}}", priority=n % 10).pk)
for n in range({LENGTH}):
    for stream in range({STREAMS}):
        # Both releases send to these streams.
        ids.append(send("sample.work", {{"n": n}}, stream=f"shared-{{stream}}").pk)
for n in range({ORDERS}):
    start("sample.order", instance=f"{{who}}-order-{{n}}")
    raise_event(f"{{who}}-order-{{n}}", "deliver", who)
send("sample.refuse", {{}})
send("sample.work", {{"fail": 1}})
print(*ids)
"""
SENT = PLAIN + STREAMS * LENGTH


def produce(release: Release, who: str) -> list[int]:
    ids = [int(id) for id in release.run(PRODUCE, who).split()]
    assert len(ids) == SENT
    return ids


def wait_for_the_end(*, poison: int) -> None:
    wait_until(lambda: PoisonRecord.objects.count() == poison)
    wait_until(lambda: not Instance.objects.filter(status="running").exists())
    wait_until(lambda: not Message.objects.exists())


def assert_orders_completed(who: str) -> None:
    for n in range(ORDERS):
        found = instance_status(f"{who}-order-{n}")
        assert (found.status, found.error) == ("completed", None)
        assert found.output == {
            "results": {"reserve": True, "charge": True, "label": True},
            "parcel": {"heavy": True},
            "waits": True,
            "to": who,
        }


def assert_streams_in_order(workers: Workers) -> None:
    """Streams start their messages in the order of ids; a repeat follows the last one that ran."""
    started: dict[str, list[int]] = defaultdict(list)
    for line in workers.journal("start"):
        if line["stream"] and line["stream"].startswith("shared-"):
            ids = started[line["stream"]]
            if line["id"] not in ids:
                ids.append(line["id"])
    assert {stream: ids == sorted(ids) for stream, ids in started.items()} == {
        f"shared-{stream}": True for stream in range(STREAMS)
    }


def handled(workers: Workers) -> set[int]:
    return {line["id"] for line in workers.journal("finish")}


@pytest.fixture(autouse=True)
def _quick_retries(transactional_db):
    soon = timedelta(milliseconds=50)
    queues = Queue.objects.filter(name="default")
    queues.update(max_attempts=20, backoff_base=soon, backoff_cap=2 * soon)


def test_the_old_code_is_the_old_code(old: Release, new: Release):
    program = "import deadletter; print(deadletter.__file__)"

    assert old.run(program).startswith(str(old.root))
    assert new.run(program).startswith(str(new.root))


def test_the_old_release_works_alone_on_the_new_schema(old: Release, old_workers: Workers):
    ids = produce(old, "old")
    fleet = [old_workers.start("--poll", 0.05) for _ in range(2)]

    wait_for_the_end(poison=1)

    assert [worker.stop() for worker in fleet] == [0, 0]
    assert set(ids) <= handled(old_workers)
    assert_orders_completed("old")
    assert_streams_in_order(old_workers)


def test_a_rolling_upgrade_loses_nothing_and_keeps_streams_in_order(
    old: Release, new: Release, old_workers: Workers, new_workers: Workers
):
    # The old ones are in the middle of their work when new ones come, and hold some of it.
    ids = produce(old, "old")
    options = ("--poll", 0.05, "--lease", 2, "--batch", 5)
    first, second = (old_workers.start(*options) for _ in range(2))
    old_workers.wait_for("finish", count=10)

    fresh = [new_workers.start(*options) for _ in range(2)]
    ids += produce(new, "new")
    ids += produce(old, "late")
    new_workers.wait_for("finish", count=60)
    # One is replaced in good order, the other dies with what it holds.
    assert first.stop() == 0
    second.signal(signal.SIGKILL)
    wait_for_the_end(poison=3)

    assert [worker.stop() for worker in fresh] == [0, 0]
    assert len(set(ids)) == 3 * SENT
    assert set(ids) <= handled(new_workers)
    for who in ("old", "new", "late"):
        assert_orders_completed(who)
    assert_streams_in_order(new_workers)


def test_old_operators_act_on_what_new_workers_leave(old: Release, new_workers: Workers):
    """Every table that people write to: queues, audits, poison, retries."""
    worker = new_workers.start("--poll", 0.05)
    said = old.run(
        """
from deadletter import send
from deadletter.models import Queue
Queue.objects.create(name="of-the-old", max_attempts=1)
print(send("sample.refuse", {}).pk, send("sample.work", {"fail": 9}, queue="of-the-old").pk)
"""
    )
    ids = [int(id) for id in said.split()]
    poison = PoisonRecord.objects.filter(message_id__in=ids).order_by("message_id")
    wait_until(lambda: poison.count() == 2)
    ids = [record.pk for record in poison]

    said = old.run(
        """
from deadletter import operations
refused, failed = map(int, sys.argv[1:])
print(operations.remove_poison([refused], by="ops", why="old").removed)
print(operations.retry_poison([failed], by="ops", payload={"fixed": True}).retried)
""",
        *map(str, ids),
    )

    assert said.split("\n")[:2] == [f"[{ids[0]}]", f"[{ids[1]}]"]
    wait_until(lambda: not Message.objects.exists())
    assert worker.stop() == 0
    assert not PoisonRecord.objects.exists()
