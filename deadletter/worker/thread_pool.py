"""
How many threads does the work need? One while handlers are quick, all of them when handlers wait.

Python runs one thread at a time. Threads that never wait only take the lock of the interpreter from
each other, and from the pump: eight of them were slower than one. So runs are taken by one thread,
and another one joins only when a run has waited for a moment in which nothing, or nothing quick,
was begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

from django.db import connections

from .in_flight import Holding

Run = list[Holding]

#: Seconds that runs wait for a busy thread before another one joins it.
PATIENCE = 0.002
#: Seconds from one message to the next below which a handler is quick.
QUICK = 0.0002
#: So many quick messages more than slow ones, each of these counted as many, make a thread quick.
STREAK = 32
SLOW = 16


class Member:
    """A thread of the crew, as the others see it."""

    __slots__ = ("is_superfluous", "last", "streak")

    def __init__(self) -> None:
        #: When it began its last message.
        self.last = 0.0
        self.streak = 0
        #: It waited, for the interpreter most likely, while another quick thread went on.
        self.is_superfluous = False

    @property
    def is_quick(self) -> bool:
        return self.streak >= STREAK


class Crew:
    """At most `size` threads that take runs from a queue, in the order in which they came."""

    def __init__(self, *, size: int, work: Callable[[Run, Member], bool]) -> None:
        self.runs: deque[Run] = deque()
        #: Does a run; False when its thread was replaced meanwhile and must end.
        self._work = work
        self._changed = threading.Condition()
        self._active: set[Member] = set()
        self._idle = 0
        #: Idle threads that are called to join those at work.
        self._called = 0
        #: One idle thread looks after the queue while it is not empty.
        self._is_watched = False
        self._is_stopping = False
        for _ in range(size):
            self.add_thread()

    def add_thread(self) -> None:
        threading.Thread(target=self._serve, name="deadletter-executor", daemon=True).start()

    def put(self, runs: Iterable[Run]) -> None:
        """Take runs: in order inside, side by side with each other."""
        self.runs.extend(runs)
        with self._changed:
            if self.runs and not self._movers(monotonic()):
                # Those at work are busy with something longer, or there are none.
                self._call(1)
            elif self.runs and not self._is_watched:
                self._changed.notify()

    def stop(self) -> None:
        """Let idle threads end. Those that run finish first; nobody waits for them here."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def began(self, member: Member, now: float) -> None:
        """Note that a thread begins a message; called once for each."""
        if now - member.last < QUICK:
            if member.streak < 2 * STREAK:
                member.streak += 1
        else:
            self._was_slow(member, now)
        member.last = now

    def _was_slow(self, member: Member, now: float) -> None:
        """Either its handler took some time, or this thread had to wait for the interpreter."""
        if member.is_quick and len(self._active) > 1:
            with self._changed:
                member.is_superfluous = any(
                    other.is_quick and other.last > member.last
                    for other in self._movers(now)
                    if other is not member and not other.is_superfluous
                )
        member.streak = max(0, member.streak - SLOW)

    def _serve(self) -> None:
        member = Member()
        try:
            while (run := self._next(member)) is not None and self._work(run, member):
                pass
        finally:
            with self._changed:
                self._active.discard(member)
            connections.close_all()

    def _next(self, member: Member) -> Run | None:
        """Return the next run, however long it takes to come; None: this thread must end."""
        if not member.is_superfluous:
            try:
                return self.runs.popleft()
            except IndexError:
                pass
        with self._changed:
            self._active.discard(member)
            member.is_superfluous = False
            self._idle += 1
            run = self._wait(member)
            self._idle -= 1
            return run

    def _wait(self, member: Member) -> Run | None:
        while not self._is_stopping:
            if not self.runs:
                self._called = 0
                self._changed.wait()
            elif self._called or not self._active:
                if (run := self._join(member)) is not None:
                    return run
            elif self._is_watched:
                self._changed.wait()
            else:
                self._watch()
        return None

    def _join(self, member: Member) -> Run | None:
        try:
            run = self.runs.popleft()
        except IndexError:
            return None
        self._called = max(0, self._called - 1)
        self._active.add(member)
        member.last, member.streak = monotonic(), 0
        if self.runs:
            self._changed.notify()  # somebody else has to watch
        return run

    def _watch(self) -> None:
        """Give those at work a moment; if none of them is quick, call as many again."""
        self._is_watched = True
        self._changed.wait(PATIENCE)
        self._is_watched = False
        if self.runs and not any(member.is_quick for member in self._movers(monotonic())):
            self._call(max(1, len(self._active)))

    def _call(self, count: int) -> None:
        self._called = min(max(self._called, count), self._idle)
        self._changed.notify(self._called)

    def _movers(self, now: float) -> list[Member]:
        """Return those who began something a moment ago."""
        return [member for member in self._active if now - member.last < PATIENCE]
