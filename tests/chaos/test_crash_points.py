"""A process dies at every point it passes, once and always; nothing is lost, nobody else harmed."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from deadletter import FailureReason, crash_points, lifecycle, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, OutboxMessage, PoisonRecord, Result
from tests.processes import wait_until
from tests.sample.journal import DIRECTORY, write

from . import tasks
from .checker import Line, check
from .event_checker import EventVerdict, check_events
from .nemesis import create_queues, set_policy
from .relays import broker_options
from .remains import read_event_remains, read_remains
from .stage import Actor, stage
from .tasks import DEAD, DISCARDING, MOVING, tag_of
from .topics import REFUSED
from .workers import ROOT

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: Points that only one message passes: a death there is its own.
OF_A_MESSAGE = {
    "handler.starting": "chaos.culprit",
    "handler.returned": "chaos.culprit",
    "atomic.completed": "chaos.effect",
    "renew.extended": "chaos.work",
    "stage.recorded": "chaos.staged",
}
#: Points that only a message passes which takes its time.
SLOW = {"renew.extended": "slow", "stage.recorded": "recording"}
OF_THE_SUPERVISOR = ["supervisor.freeing", "supervisor.freed"]
OF_A_SENDER = ["send.stored", "send_many.stored", "notify.sending"]
OF_AN_OPERATOR = {"retry.restored": "retry", "remove.deleted": "remove"}
#: tests/schedules/test_processes.py.
OF_SCHEDULES = [point for point in crash_points.POINTS if point.startswith("schedule.")]
OF_A_PUBLISHER = ["publish.stored", "publish_many.stored"]
OF_A_RELAY = sorted(
    point for point in crash_points.POINTS if point.startswith(("relay.", "outbox."))
)
OF_A_WORKER = sorted(
    crash_points.POINTS.keys()
    - {*OF_THE_SUPERVISOR, *OF_A_SENDER, *OF_AN_OPERATOR.keys(), *OF_A_PUBLISHER, *OF_A_RELAY}
    - {*OF_SCHEDULES}
)

#: Deaths at a point that nothing gets past, before it is repaired.
MANY = 4
LIMIT = 3
#: Times that a sender or an operator dies, looked at after each.
DEATHS = 3
ARGUMENTS = ["--processes", "2", "--concurrency", "1", "--poll", "0.05", "--log-format", "json"]
RELAY = ["--relay", "--poll", "0.05", "--log-format", "json"]
IN_CHILDREN = {"DEADLETTER_CRASH_IN": "children"}
#: Events of a batch: some batches are needed for what is published here.
BATCH = 10
#: Relays publish into the journal, and the leases of their lanes last for a second.
JOURNAL_BROKER = {
    "CHAOS_BROKERS": json.dumps(
        broker_options(transport="tests.chaos.noted_transports.NotedJournal", batch=BATCH)
    ),
    "CHAOS_LANE_LEASE": "1",
}

MESSAGES: dict[str, dict[str, Any]] = {
    "first": {"stream": "a"},
    "culprit": {"name": "chaos.culprit", "stream": "a"},
    "behind": {"stream": "a"},
    "failing": {"stream": "b", "fail": 1},
    "waiting": {"stream": "b"},
    "hopeless": {"stream": "b", "fail": 99},
    "last": {"stream": "b"},
    # Long enough for the other process to find the stream busy.
    **{f"queueing-{n}": {"stream": "c", "sleep": 0.02} for n in range(6)},
    "effect": {"name": "chaos.effect"},
    "plain": {},
    "async": {"name": "chaos.async"},
    "staged": {"name": "chaos.staged", "stream": "d"},
    "after-stages": {"stream": "d"},
    # Until its lease must be renewed.
    "slow": {"sleep": 0.75},
    # Until what it has done is written.
    "recording": {"name": "chaos.staged", "sleep": 0.75},
    "task": {"task": "work"},
    "task-first": {"task": "work", "stream": "e"},
    "task-failing": {"task": "work", "stream": "e", "fail": 1},
    "task-hopeless": {"task": "work", "stream": "e", "fail": 99},
    "task-last": {"task": "work", "stream": "e"},
    "task-effect": {"task": "effect"},
    "task-async": {"task": "work_async"},
    "task-discarded": {"task": "work", "queue": DISCARDING, "fail": 99},
    "task-moved": {"task": "work", "queue": MOVING, "fail": 99},
}
#: What fails at each attempt.
HOPELESS = {"hopeless", "task-hopeless", "task-moved"}
#: Tasks whose results are lost with their process: their attempts are charged.
CHARGED = {tag for tag, options in MESSAGES.items() if "task" in options}


class Theatre:
    """One test's messages, processes and journal."""

    def __init__(self, directory: Path, start: Callable[..., Actor]) -> None:
        self.directory = directory
        self.start = start
        self.rounds = 0
        #: What is not sent: it could pass a point that only another one is to pass.
        self.left_out: set[str] = set()

    def send(self, tag: str, name: str = "chaos.work", **options: Any) -> int:
        stream = options.pop("stream", None)
        if "task" in options:
            return self.enqueue(tag, stream=stream, **options)
        write("attempted", tags=[tag])
        id = send(name, {"tag": tag, **options}, stream=stream).pk
        write("acked", tags=[tag], ids=[id])
        return id

    def enqueue(
        self, tag: str, *, task: str, stream: str | None, queue: str = "default", **options: Any
    ) -> int:
        write("attempted", tags=[tag], tasks=[tag])
        wanted = getattr(tasks, task).using(queue_name=queue, stream=stream)
        id = int(wanted.enqueue(tag=tag, **options).id)
        write("acked", tags=[tag], ids=[id])
        return id

    def fill(self, *, slow: str | None = None) -> None:
        """Send something for every point: streams, failures, a death, an effect, a long handler."""
        self.rounds += 1
        for tag, options in MESSAGES.items():
            if (tag not in SLOW.values() or tag == slow) and tag not in self.left_out:
                self.send(f"{tag} {self.rounds}", **options)

    def lines(self) -> list[Line]:
        return [json.loads(line) for line in (self.directory / "journal").read_text().splitlines()]

    def deaths(self) -> int:
        return sum(line["what"] == "fault" for line in self.lines())

    def assert_promises_kept(self) -> None:
        assert check(self.lines(), read_remains(), max_attempts=LIMIT).violations == []
        assert lifecycle.sweep().repaired == 0

    def run(self, *, deaths: int = 1, **environment: str) -> None:
        """Let workers run, again when all of them are dead, until nothing is left to do."""
        worker = self.start("worker", *ARGUMENTS, **environment)

        def nothing_left() -> bool:
            nonlocal worker
            if worker.code is not None:
                assert worker.code == -signal.SIGKILL, worker.text()
                worker = self.start("worker", *ARGUMENTS, **environment)
            if Message.objects.exclude(queue__name=DEAD).exists():
                return False
            if self.deaths() < deaths:
                # Two processes happened to share the work so that neither came by: once more.
                self.fill()
                return False
            return True

        wait_until(nothing_left, why=lambda: worker.text())
        # Before that, nobody listens to signals yet.
        wait_until(lambda: "worker_started" in worker.text(), why=worker.text)
        assert worker.stop() == 0

    def publish(
        self, prefix: str, count: int = 30, *, many: bool = True, **environment: str
    ) -> int:
        """Publish events of three keys in a process; return its exit code."""
        offered = [
            {
                # The last but one is refused: nothing waits behind it for long.
                "topic": REFUSED if n == count - 2 else "chaos.orders",
                "payload": {"tag": f"{prefix}-{n}"},
                "key": f"k{n % 3}",
                "headers": {"tag": f"{prefix}-{n}"},
            }
            for n in range(count)
        ]
        return self.start("publisher", offered, many, **JOURNAL_BROKER, **environment).wait()

    def relay(self, *arguments: str, **environment: str) -> None:
        """Let relays run, again when they are dead, until the outbox is empty."""
        environment = {**JOURNAL_BROKER, **environment}
        relay = self.start("worker", *arguments, **environment)

        def is_empty() -> bool:
            nonlocal relay
            if relay.code is not None:
                assert relay.code == -signal.SIGKILL, relay.text()
                relay = self.start("worker", *arguments, **environment)
            return not OutboxMessage.objects.exists()

        wait_until(is_empty, why=lambda: relay.text())
        wait_until(lambda: "r_started" in relay.text() or "y_started" in relay.text())
        assert relay.stop() == 0

    def assert_events_arrived(self) -> EventVerdict:
        verdict = check_events(self.lines(), read_event_remains())
        assert verdict.violations == []
        return verdict

    def dead(self) -> dict[str, Any]:
        """Return what died, by its tag without the number of its round."""
        rows = [*PoisonRecord.objects.all(), *Message.objects.filter(queue__name=DEAD)]
        return {tag_of(row.payload).split()[0]: row for row in rows}


@pytest.fixture
def theatre(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> Iterator[Theatre]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    create_queues()
    set_policy(
        max_attempts=LIMIT,
        cooldown=timedelta(seconds=0.1),
        lease_timeout=timedelta(seconds=1),
    )
    environment = {
        DIRECTORY: str(tmp_path),
        "STAGE_DATABASE": str(connection.settings_dict["NAME"]),
    }
    with stage(environment, tmp_path) as start:
        yield Theatre(tmp_path, start)


@pytest.mark.parametrize("point", OF_A_WORKER)
def test_a_worker_that_dies_once_harms_nobody(theatre: Theatre, point: str):
    theatre.fill(slow=SLOW.get(point))

    theatre.run(DEADLETTER_CRASH_AT=point, DEADLETTER_CRASHES="1", DEADLETTER_CRASH_IN="children")

    assert theatre.deaths() == 1
    theatre.assert_promises_kept()
    # Only what fails at each attempt dies; whatever was on its way when the process ended does not.
    assert theatre.dead().keys() == HOPELESS


@pytest.mark.parametrize("point", OF_A_WORKER)
def test_a_worker_that_dies_always_harms_only_the_message_it_dies_of(theatre: Theatre, point: str):
    if point == "stage.recorded":
        theatre.left_out = {"staged"}
    theatre.fill(slow=SLOW.get(point))
    bound = point in OF_A_MESSAGE
    crash = {"DEADLETTER_CRASH_AT": point, "DEADLETTER_CRASH_IN": "children"}
    if bound:
        crash["DEADLETTER_CRASH_NAME"] = OF_A_MESSAGE[point]
    else:
        crash["DEADLETTER_CRASHES"] = str(MANY)

    theatre.run(deaths=LIMIT if bound else 1, **crash)

    theatre.assert_promises_kept()
    dead = theatre.dead()
    if not bound:
        assert theatre.deaths() <= MANY
        assert dead.keys() >= HOPELESS
        # A handler that runs when its process dies is charged. The one that writes to the database
        # takes the longest: it may run at each of these deaths.
        others = dead.keys() - CHARGED - {"hopeless"}
        assert others <= {"effect"}
        assert {dead[tag].last_failure_reason for tag in others} <= {FailureReason.WORKER_LOST}
        return
    tag = {"atomic.completed": "effect", **SLOW}.get(point, "culprit")
    assert theatre.deaths() == LIMIT
    assert dead.keys() == HOPELESS | {tag}
    assert dead[tag].reason == FailureReason.POISON_MESSAGE
    assert dead[tag].last_failure_reason == FailureReason.WORKER_LOST
    assert dead[tag].attempts == LIMIT


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("point", OF_THE_SUPERVISOR)
def test_a_supervisor_that_dies_beside_its_child_leaves_the_rest_to_time(
    theatre: Theatre, point: str, times: int
):
    theatre.fill()
    theatre.send("crash", "chaos.crash", times=times)

    theatre.run(DEADLETTER_CRASH_AT=point, DEADLETTER_CRASHES=str(times))

    died = Counter(line["kind"] for line in theatre.lines() if line["what"] == "fault")
    # A child that its supervisor left behind may have met the message that kills for the last time.
    assert died["handler"] == times
    assert 1 <= died[point] <= times
    theatre.assert_promises_kept()
    # One attempt of "failing" fails by itself; what ran in the other child when the supervisor died
    # is charged as well, so two deaths may use up the other two.
    unlucky = {"failing", *CHARGED} - HOPELESS if times == 2 else set()
    assert theatre.dead().keys() - unlucky == HOPELESS


@pytest.mark.parametrize("point", OF_A_SENDER)
def test_a_sender_that_dies_has_sent_all_or_nothing(theatre: Theatre, point: str):
    if point == "notify.sending" and connection.vendor == "sqlite":
        pytest.skip("SQLite has no NOTIFY")
    many = point == "send_many.stored"
    committed = point == "notify.sending"

    for number in range(DEATHS):
        tags = [f"{number}-{letter}" for letter in "abc"]
        dying = theatre.start("sender", tags, many, DEADLETTER_CRASH_AT=point)
        assert dying.wait() == -signal.SIGKILL
        assert Message.objects.count() == (3 * (number + 1) if committed else 0)

    assert theatre.start("sender", ["after"], many).wait() == 0
    theatre.run(deaths=DEATHS)
    theatre.assert_promises_kept()


@pytest.mark.parametrize("point", OF_A_PUBLISHER)
def test_a_publisher_that_dies_has_published_nothing(theatre: Theatre, point: str):
    many = point == "publish_many.stored"

    for number in range(DEATHS):
        code = theatre.publish(f"lost-{number}", 3, many=many, DEADLETTER_CRASH_AT=point)
        assert code == -signal.SIGKILL
        assert OutboxMessage.objects.count() == 0

    assert theatre.publish("after", many=many) == 0
    theatre.relay(*RELAY)
    assert theatre.deaths() == DEATHS
    verdict = theatre.assert_events_arrived()
    assert (verdict.stored, verdict.arrived, verdict.poison) == (30, 29, 1)


@pytest.mark.parametrize("place", ["alone", "worker"])
@pytest.mark.parametrize("point", OF_A_RELAY)
def test_a_relay_that_dies_loses_nothing(theatre: Theatre, point: str, place: str):
    """Everything arrives, in order; the batch of which it died arrives again, nothing else."""
    assert theatre.publish("event") == 0
    arguments, crash = (RELAY, {}) if place == "alone" else (ARGUMENTS, IN_CHILDREN)

    theatre.relay(*arguments, DEADLETTER_CRASH_AT=point, DEADLETTER_CRASHES=str(DEATHS), **crash)

    assert theatre.deaths() == DEATHS
    verdict = theatre.assert_events_arrived()
    assert (verdict.stored, verdict.arrived, verdict.poison) == (30, 29, 1)
    # A relay has one batch whose confirms are open.
    assert verdict.duplicates <= DEATHS * BATCH


@pytest.mark.parametrize("point", OF_AN_OPERATOR)
def test_an_operator_whose_process_dies_has_done_nothing(theatre: Theatre, point: str):
    id = theatre.send("dead", stream="a")
    batch = claim(worker="w")
    fail(batch.token, [Failure(id, "never", permanent=True)])
    theatre.send("behind", stream="a")
    records = list(PoisonRecord.objects.values_list("pk", flat=True))
    verb = OF_AN_OPERATOR[point]

    for _ in range(DEATHS):
        dying = theatre.start("operator", verb, records, DEADLETTER_CRASH_AT=point)
        assert dying.wait() == -signal.SIGKILL
        assert [record.message_id for record in PoisonRecord.objects.all()] == [id]
        assert Message.objects.count() == 1

    write("retrying" if verb == "retry" else "removing", ids=[id], fences={str(id): 1})
    assert theatre.start("operator", verb, records).wait() == 0
    assert Message.objects.count() == (2 if verb == "retry" else 1)
    theatre.run(deaths=DEATHS)
    theatre.assert_promises_kept()
    assert not PoisonRecord.objects.exists()


@pytest.mark.parametrize("point", ["remove.deleted", "transaction.committing"])
def test_a_removal_that_dies_leaves_no_result(theatre: Theatre, point: str):
    id = theatre.send("dead", task="work")
    batch = claim(worker="w")
    fail(batch.token, [Failure(id, "never", permanent=True)])
    records = list(PoisonRecord.objects.values_list("pk", flat=True))

    for _ in range(DEATHS):
        dying = theatre.start("operator", "remove", records, DEADLETTER_CRASH_AT=point)
        assert dying.wait() == -signal.SIGKILL
        assert (PoisonRecord.objects.count(), Result.objects.count()) == (1, 0)

    write("removing", ids=[id])
    assert theatre.start("operator", "remove", records).wait() == 0
    assert PoisonRecord.objects.count() == 0
    assert [(row.pk, row.outcome) for row in Result.objects.all()] == [(id, "removed")]
    theatre.assert_promises_kept()


def test_every_point_is_in_the_list_and_the_list_is_in_the_source():
    source = Path(crash_points.__file__).parent
    found = Counter(
        name
        for file in source.rglob("*.py")
        for name in re.findall(r'points\.reach\("([\w.]+)"', file.read_text())
    )

    assert found.keys() == crash_points.POINTS.keys()


def test_every_point_is_in_the_documentation():
    page = (ROOT / "docs" / "reliability.md").read_text()
    section = page.split("## Crash points")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]

    assert set(re.findall(r"`([\w.]+)`", "".join(table))) == crash_points.POINTS.keys()


def test_nobody_listens_unless_a_test_does():
    assert not crash_points.is_watched()
