"""
A schedule decides who takes the next step: players in threads that stop before every statement.

A step is one named statement of the queue, or a commit. One player moves at a time, chosen by a
seeded chance, so that a seed names a schedule. A player whose statement waits for a lock is set
aside until the database says that nobody holds it up any more.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from django.db import connection

from deadletter import sql
from tests.patience import PATIENCE

#: Seconds after which a statement that does not return is suspected to wait for a lock.
QUICK = 0.01


class Player:
    """Plays a part in a thread, with a connection of its own; moves only when told."""

    def __init__(self, name: str, part: Callable[[], None]) -> None:
        self.name = name
        self.pid = 0
        self.at = "start"
        self.is_done = False
        self.error: BaseException | None = None
        self._part = part
        self._go = threading.Event()
        self.has_stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self, at: str) -> None:
        """Stand still before a step until it is granted."""
        self.at = at
        self.has_stopped.set()
        assert self._go.wait(PATIENCE), f"{self.name} was forgotten before {at}"
        self._go.clear()

    def go(self) -> None:
        self.has_stopped.clear()
        self._go.set()

    def _run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self.pid = cursor.fetchone()[0]
            _local.player = self
            commit = connection._commit

            def stop_and_commit() -> Any:
                self.stop("commit")
                return commit()

            connection._commit = stop_and_commit  # this thread's own connection
            self.stop("start")
            self._part()
        except BaseException as error:  # noqa: BLE001 - looked at by the schedule
            self.error = error
        finally:
            _local.player = None
            connection.close()
            self.is_done = True
            self.has_stopped.set()


class Schedule:
    """Plays all parts to their end; `after` is called when somebody has committed."""

    def __init__(
        self, seed: int, players: Sequence[Player], *, observer: str, after: Callable[[], None]
    ) -> None:
        self.chance = random.Random(seed)
        self.players = players
        self.after = after
        self.trace: list[str] = []
        self.waits = 0
        self._blocked: list[Player] = []
        self._observer = psycopg.connect(observer, autocommit=True)

    def play(self) -> None:
        for player in self.players:
            player.thread.start()
            assert player.has_stopped.wait(PATIENCE)
        try:
            while playing := [player for player in self.players if not player.is_done]:
                ready = [player for player in playing if player not in self._blocked]
                if ready:
                    self._step(self.chance.choice(ready))
                self._look_at_the_blocked(patiently=not ready)
        finally:
            self._observer.close()

    def _step(self, player: Player) -> None:
        at = player.at
        self.trace.append(f"{player.name}: {at}")
        player.go()
        if self._waits(player):
            self.trace.append(f"{player.name}: waits for a lock in {at}")
            self.waits += 1
            self._blocked.append(player)
            return
        if player.error is not None:
            raise player.error
        if at == "commit":
            self.after()

    def _look_at_the_blocked(self, *, patiently: bool) -> None:
        """Whoever got the lock runs to the next stop before anybody else moves."""
        deadline = time.monotonic() + PATIENCE
        while self._blocked:
            freed = [player for player in self._blocked if not self._waits(player)]
            for player in freed:
                self._blocked.remove(player)
                self.trace.append(f"{player.name}: got it")
                if player.error is not None:
                    raise player.error
            if freed or not patiently:
                return
            assert time.monotonic() < deadline, "everybody waits for somebody"

    def _waits(self, player: Player) -> bool:
        """Let it come to its next stop, unless the database says that somebody is in its way."""
        deadline = time.monotonic() + PATIENCE
        while not player.has_stopped.wait(QUICK):
            blocking = self._observer.execute("SELECT pg_blocking_pids(%s)", [player.pid])
            if blocking.fetchone()[0]:  # type: ignore[index]
                return True
            assert time.monotonic() < deadline, f"{player.name} neither moves nor waits"
        return False


_local = threading.local()
_run = sql.run


def run(connection: Any, name: str, params: Any, **options: Any) -> Any:
    """Stands in for `deadletter.sql.run` while a schedule is played."""
    player = getattr(_local, "player", None)
    if player is not None:
        player.stop(name)
    return _run(connection, name, params, **options)
