"""
The executor threads: one is active while handlers are quick, all of them if handlers wait.

Python runs one thread at a time. Threads that never wait only take the interpreter's lock from each
other, and from the pump: eight of them were slower than one. So one thread takes the runs. Another
joins only if runs have waited for PATIENCE and meanwhile no active thread began a message, or only
threads with slow handlers did.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

from django.db import connections

from .in_flight import Run

#: Seconds for which runs wait for a busy thread before another one joins it.
PATIENCE = 0.002
#: Seconds from one message to the next below which a handler is quick.
QUICK = 0.0002
#: A thread is quick after this many quick messages; each slow message takes SLOW of them away.
STREAK = 32
SLOW = 16


class PoolThread:
    """The state of one thread, as the other threads see it."""

    __slots__ = ("_pool", "is_superfluous", "last", "streak")

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        #: When it began its last message.
        self.last = 0.0
        self.streak = 0
        #: True if another quick thread began a message while this one waited, most likely for the
        #: interpreter's lock.
        self.is_superfluous = False

    @property
    def is_quick(self) -> bool:
        return self.streak >= STREAK

    def began(self, now: float) -> None:
        """Record that the thread begins a message; called once for each message."""
        if now - self.last < QUICK:
            if self.streak < 2 * STREAK:
                self.streak += 1
        else:
            self._pool.was_slow(self, now)
        self.last = now


class ThreadPool:
    """At most `size` threads that take runs from a queue, first come, first served."""

    def __init__(self, *, size: int, work: Callable[[Run, PoolThread], bool]) -> None:
        #: The runs that wait for a thread.
        self.runs: deque[Run] = deque()
        #: Executes a run; returns False if the thread was replaced meanwhile and must end.
        self._work = work
        self._changed = threading.Condition()
        self._active: set[PoolThread] = set()
        self._idle = 0
        #: Number of idle threads that are called to join the active ones.
        self._called = 0
        #: True while an idle thread watches the queue, which is not empty.
        self._is_watched = False
        self._is_stopping = False
        for _ in range(size):
            self.add_thread()

    def add_thread(self) -> None:
        threading.Thread(target=self._serve, name="deadletter-executor", daemon=True).start()

    def put(self, runs: Iterable[Run]) -> None:
        """Queue runs: messages of a run in order, runs side by side."""
        self.runs.extend(runs)
        with self._changed:
            if self.runs and not self._recently_active(monotonic()):
                # The active threads are in long handlers, or there are none.
                self._call(1)
            elif self.runs and not self._is_watched:
                self._changed.notify()

    def stop(self) -> None:
        """Let idle threads end. Busy ones finish their handlers first; this does not wait."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def was_slow(self, thread: PoolThread, now: float) -> None:
        """Record a slow message: a long handler, or a wait for the interpreter."""
        if thread.is_quick and len(self._active) > 1:
            with self._changed:
                thread.is_superfluous = any(
                    other.is_quick and other.last > thread.last
                    for other in self._recently_active(now)
                    if other is not thread and not other.is_superfluous
                )
        thread.streak = max(0, thread.streak - SLOW)

    def _serve(self) -> None:
        thread = PoolThread(self)
        try:
            while (run := self._next(thread)) is not None and self._work(run, thread):
                pass
        finally:
            with self._changed:
                self._active.discard(thread)
            connections.close_all()

    def _next(self, thread: PoolThread) -> Run | None:
        """Wait for the next run and return it; None if this thread must end."""
        if not thread.is_superfluous:
            try:
                return self.runs.popleft()
            except IndexError:
                pass
        with self._changed:
            self._active.discard(thread)
            thread.is_superfluous = False
            self._idle += 1
            run = self._wait(thread)
            self._idle -= 1
            return run

    def _wait(self, thread: PoolThread) -> Run | None:
        while not self._is_stopping:
            if not self.runs:
                self._called = 0
                self._changed.wait()
            elif self._called or not self._active:
                if (run := self._join(thread)) is not None:
                    return run
            elif self._is_watched:
                self._changed.wait()
            else:
                self._watch()
        return None

    def _join(self, thread: PoolThread) -> Run | None:
        try:
            run = self.runs.popleft()
        except IndexError:
            return None
        self._called = max(0, self._called - 1)
        self._active.add(thread)
        thread.last, thread.streak = monotonic(), 0
        if self.runs:
            self._changed.notify()  # another idle thread must watch the queue
        return run

    def _watch(self) -> None:
        """Wait for PATIENCE; if runs still wait and no active thread is quick, double them."""
        self._is_watched = True
        self._changed.wait(PATIENCE)
        self._is_watched = False
        if self.runs and not any(thread.is_quick for thread in self._recently_active(monotonic())):
            self._call(max(1, len(self._active)))

    def _call(self, count: int) -> None:
        self._called = min(max(self._called, count), self._idle)
        self._changed.notify(self._called)

    def _recently_active(self, now: float) -> list[PoolThread]:
        """Return the active threads that began a message within the last PATIENCE seconds."""
        return [thread for thread in self._active if now - thread.last < PATIENCE]
