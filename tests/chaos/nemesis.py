"""Carries the plan out, and writes down whom it hit and for how long."""

from __future__ import annotations

import heapq
import math
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
from django.db import Error, connection

from deadletter import operations
from deadletter.models import Kind, Message, PoisonRecord, Queue
from tests.outbox.cut_proxy import CutProxy
from tests.sample.journal import write

from .broker_sites import BrokerSite
from .plan import OF_A_BROKER, OF_THE_SERVER, RECOVERY, Fault
from .sites import PostgresSite, SQLiteSite
from .tasks import DEAD, DISCARDING, MOVING
from .workers import Crew

#: The attempts a queue allows, from one edit to the next; the largest is what the checker needs.
LIMITS = (3, 4, 5)
MOST_ATTEMPTS = max(LIMITS)
#: Records an operator deals with at a time.
HANDFUL = 5

Step = Callable[[], None]


class Nemesis:
    """`run` returns when the last fault is over; everything is healed by then."""

    def __init__(
        self,
        site: PostgresSite | SQLiteSite,
        crew: Crew,
        seed: int,
        broker: BrokerSite | None = None,
    ) -> None:
        self.site = site
        self.broker = broker
        self.crew = crew
        self.done = 0
        self._chance = random.Random(f"nemesis {seed}")
        self._steps: list[tuple[float, int, Step]] = []
        self._order = 0
        # People wait for locks, and who holds them may stand still until a step here wakes it.
        self._operator = ThreadPoolExecutor(max_workers=1)
        # A broker takes seconds to start, and others are to be woken meanwhile. One at a time.
        self._at_broker = ThreadPoolExecutor(max_workers=1)
        self._acts: list[Future[None]] = []
        self._over = threading.Event()
        #: When the server may suffer again.
        self._server_free = 0.0

    def run(self, faults: list[Fault]) -> None:
        try:
            self._run(faults)
        finally:
            self._over.set()
            self._operator.submit(connection.close)
            self._operator.shutdown()
            # A run that ends early does not wait for what was still to happen.
            self._at_broker.shutdown(cancel_futures=True)

    def _run(self, faults: list[Fault]) -> None:
        begun = time.monotonic()
        for fault in faults:
            self._later(begun + fault.at, lambda fault=fault: self._begin(fault))
        while self._steps:
            self.crew.replace_dead()
            if time.monotonic() < self._steps[0][0]:
                time.sleep(0.01)
                continue
            heapq.heappop(self._steps)[2]()
        while not all(act.done() for act in self._acts):
            self.crew.replace_dead()
            time.sleep(0.01)
        for act in self._acts:
            act.result()

    def _later(self, at: float, step: Step) -> None:
        self._order += 1
        heapq.heappush(self._steps, (at, self._order, step))

    def _begin(self, fault: Fault) -> None:
        now = time.monotonic()
        if fault.kind in OF_THE_SERVER and now < self._server_free:
            # It took longer to come back than the plan thought; it would be started twice.
            self._later(min(self._server_free, now + 0.1), lambda: self._begin(fault))
            return
        self.done += 1
        if fault.kind in OF_A_BROKER:
            self._acts.append(self._at_broker.submit(self._hit_broker, fault))
            return
        try:
            getattr(self, f"_{fault.kind}")(fault)
        except psycopg.OperationalError as error:
            # The server suffers from something else already.
            write("missed", kind=fault.kind, error=str(error))

    def _until(self, fault: Fault, end: Step | None = None, *, pids: list[int] | None) -> None:
        """Undo a fault when its time is over, and write it down with both its ends."""
        begun = time.monotonic()
        if fault.kind in OF_THE_SERVER:
            self._server_free = math.inf

        def over() -> None:
            # Asked before it goes on: who stands still with the lock in hand hits everybody.
            everybody = pids is None or (
                fault.kind in {"stop", "freeze"} and self.site.is_blocked_by(pids)
            )
            if end is not None:
                end()
            if fault.kind in OF_THE_SERVER:
                self._server_free = time.monotonic() + RECOVERY
            hit = None if everybody else pids
            known = {"kind": fault.kind, "target": fault.target, "pids": hit}
            write("fault", **known | {"at": begun, "until": time.monotonic()})

        self._later(begun + fault.lasts, over)

    # To a worker

    def _kill(self, fault: Fault) -> None:
        pids = self.crew.pids(fault.target)
        self._until(fault, pids=pids)
        self.crew.kill(fault.target, pause=fault.lasts)

    def _stop(self, fault: Fault) -> None:
        pids = self.crew.pids(fault.target)
        self._until(fault, lambda: self.crew.signal(fault.target, signal.SIGCONT), pids=pids)
        self.crew.signal(fault.target, signal.SIGSTOP)

    # Longer than the lease of a lane: another relay takes it meanwhile.
    _freeze = _stop

    def _cut(self, fault: Fault, mode: Any) -> None:
        proxy = self.site.proxies[f"worker-{fault.target}"]

        def heal() -> None:
            proxy.mode = "pass"

        self._until(fault, heal, pids=self.crew.pids(fault.target))
        proxy.mode = mode

    def _cut_before(self, fault: Fault) -> None:
        self._cut(fault, "before")

    def _cut_after(self, fault: Fault) -> None:
        self._cut(fault, "after")

    def _hole(self, fault: Fault) -> None:
        proxy = self.site.proxies[f"worker-{fault.target}"]
        self._until(fault, proxy.flow, pids=self.crew.pids(fault.target))
        proxy.swallow()

    # To the server

    def _terminate(self, fault: Fault) -> None:
        self._until(fault, pids=None)
        self.site.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def _crash(self, fault: Fault) -> None:
        self._until(fault, self.site.server.start, pids=None)
        self.site.server.crash()

    def _kill_server(self, fault: Fault) -> None:
        self._until(fault, self.site.server.start, pids=None)
        self.site.server.kill()

    def _kill_backend(self, fault: Fault) -> None:
        # Over when the server, which ends all sessions and recovers, is there again.
        self._until(fault, self.site.wait, pids=None)
        self.site.kill_backend()

    def _failover(self, fault: Fault) -> None:
        if self.site.standby is not None:
            self._until(fault, pids=None)
            self.site.fail_over()

    # To the broker

    def _hit_broker(self, fault: Fault) -> None:
        assert self.broker is not None
        at = time.monotonic()
        self.broker.hit(fault.kind, fault.lasts)
        write("broker_fault", kind=fault.kind, at=at, until=time.monotonic())

    def _link_cut(self, fault: Fault) -> None:
        self._hit_link(fault).cut()

    def _link_cut_before(self, fault: Fault) -> None:
        link = self._hit_link(fault)
        link.cut_before()
        self._later(time.monotonic() + fault.lasts, link.heal)

    def _link_cut_after(self, fault: Fault) -> None:
        link = self._hit_link(fault)
        # Some bytes: of the confirms of a batch, some arrive.
        link.cut_after(self._chance.choice((0, 1, 20, 60, 200)))
        self._later(time.monotonic() + fault.lasts, link.heal)

    def _hit_link(self, fault: Fault) -> CutProxy:
        assert self.broker is not None
        now = time.monotonic()
        known = {"at": now, "until": now + fault.lasts}
        write("broker_fault", kind=fault.kind, target=fault.target, **known)
        return self.broker.link(fault.target)

    # To the queue, by people

    def _by_hand(self, work: Step, *, until_done: bool = False) -> None:
        """An operator meets the same faults as everybody, and comes back later."""

        def act() -> None:
            while True:
                try:
                    _be_impatient()
                    work()
                    return
                except Error as error:
                    write("refused", error=str(error))
                    connection.close()
                if not until_done or self._over.wait(0.5):
                    return

        self._acts.append(self._operator.submit(act))

    def _policy(self, fault: Fault) -> None:
        changes = {
            "max_attempts": self._chance.choice(LIMITS),
            "cooldown": timedelta(seconds=self._chance.choice((0.1, 0.5, 1.0))),
        }
        self._by_hand(lambda: set_policy(**changes))

    def _pause(self, fault: Fault) -> None:
        self._by_hand(lambda: set_policy(paused=True))

        def go_on() -> None:
            # The one edit that must not get lost: everybody waits for it.
            self._by_hand(lambda: set_policy(paused=False), until_done=True)

        self._later(time.monotonic() + fault.lasts, go_on)

    def _retry(self, fault: Fault) -> None:
        self._by_hand(lambda: self._judge("retry"))

    def _remove(self, fault: Fault) -> None:
        self._by_hand(lambda: self._judge("remove"))

    def _judge(self, verb: str) -> None:
        self._judge_poison(verb)
        self._judge_dead(verb)

    def _judge_poison(self, verb: str) -> None:
        found = PoisonRecord.objects.order_by("-pk").values_list(
            "pk", "message_id", "fence", "kind", "source_id"
        )[:HANDFUL]
        records = {pk: (id, fence) for pk, id, fence, _, _ in found}
        events = {pk: source for pk, _, _, kind, source in found if kind == Kind.EVENT}
        if not records:
            return
        ids = [id for id, _ in records.values()]
        if verb == "retry":
            write("retrying", ids=ids, fences={str(id): fence for id, fence in records.values()})
            operations.retry_poison(list(records), by="operator")
        else:
            write("removing", ids=ids, events=list(events.values()))
            gone = operations.remove_poison(list(records), by="operator", why="chaos").removed
            left = [events[pk] for pk in gone if pk in events]
            write("removed", ids=[records[pk][0] for pk in gone], events=left)

    def _judge_dead(self, verb: str) -> None:
        """Do the same with messages of the dead queue, by the ids they had before."""
        rows = Message.objects.filter(queue__name=DEAD).order_by("-pk")
        found = rows.values_list("pk", "source_id", "death")[:HANDFUL]
        records = {pk: (id, death["fence"]) for pk, id, death in found}
        if not records:
            return
        ids = [id for id, _ in records.values()]
        if verb == "retry":
            write("retrying", ids=ids, fences={str(id): fence for id, fence in records.values()})
            operations.retry_dead(list(records), by="operator")
        else:
            write("removing", ids=ids)
            gone = operations.remove(list(records), by="operator", why="chaos").removed
            write("removed", ids=[records[pk][0] for pk in gone])


def _be_impatient() -> None:
    """Give up waiting after two seconds: who holds the lock may be a worker that stands still."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET lock_timeout = '2s'")
        else:
            cursor.execute("PRAGMA busy_timeout = 2000")


def create_queues() -> None:
    """Create the queues of tasks beside "default"."""
    dead = Queue.objects.create(name=DEAD)
    Queue.objects.create(name=MOVING, on_poison="dead_queue", dead_queue=dead)
    Queue.objects.create(name=DISCARDING, on_poison="discard")


def set_policy(**fields: Any) -> None:
    Queue.objects.exclude(name=DEAD).update(**fields)
