"""A thread leaves its line to the one that writes, and no line is lost, doubled or kept waiting."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from threading import Event, Thread, Timer, get_ident

import pytest

from deadletter import logs, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.log_writer import LogWriter
from tests.patience import PATIENCE


class Slow(logging.Handler):
    """Holds up who writes until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_at_it, self.may_go_on = Event(), Event()
        self.seen: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), get_ident()))
        self.is_at_it.set()
        assert self.may_go_on.wait(PATIENCE)

    @property
    def texts(self) -> list[str]:
        return [text for text, _thread in self.seen]


@pytest.fixture
def slow() -> Iterator[Slow]:
    handler = Slow()
    logs.logger.addHandler(handler)
    yield handler
    handler.may_go_on.set()
    logs.logger.removeHandler(handler)


def say(text: str) -> None:
    logs.event(logging.WARNING, "test", "{text}", text=text)


def started(*args: str) -> Thread:
    def all_of_them() -> None:
        for text in args:
            say(text)

    thread = Thread(target=all_of_them, daemon=True)
    thread.start()
    return thread


def test_a_thread_leaves_its_line_to_the_one_that_writes(slow: Slow) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)

    say("second")  # would wait for the first, whose handler waits for us

    assert slow.texts == ["first"]
    slow.may_go_on.set()
    first.join(PATIENCE)
    assert slow.seen == [("first", first.ident), ("second", first.ident)]


def test_lines_that_are_left_are_not_left_without_end(slow: Slow) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    for n in range(LogWriter.TURN):
        say(str(n))

    many = started("one too many")
    many.join(0.2)
    assert many.is_alive()

    slow.may_go_on.set()
    first.join(PATIENCE)
    many.join(PATIENCE)
    assert slow.texts == ["first", *map(str, range(LogWriter.TURN)), "one too many"]


def test_nobody_writes_for_the_others_without_end(slow: Slow) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    for n in range(LogWriter.TURN):
        say(str(n))
    slow.may_go_on.set()
    first.join(PATIENCE)

    # It has written its share: the next one would wait for it instead of leaving more.
    assert logs._writer._is_full()
    say("next")
    assert not logs._writer._is_full()
    assert slow.seen[-1] == ("next", get_ident())


def test_every_line_of_many_threads_is_written_once_and_in_its_order(slow: Slow) -> None:
    slow.may_go_on.set()
    threads = [started(*(f"{name} {n}" for n in range(200))) for name in "abcdefgh"]
    for thread in threads:
        thread.join(PATIENCE)

    assert len(slow.texts) == 8 * 200
    for name in "abcdefgh":
        own = [text for text in slow.texts if text.startswith(name)]
        assert own == [f"{name} {n}" for n in range(200)]


def test_a_handler_that_logs_itself_does_not_wait_for_itself(slow: Slow, monkeypatch) -> None:
    slow.may_go_on.set()
    monkeypatch.setattr(LogWriter, "TURN", 0)
    monkeypatch.setattr(LogWriter, "PATIENCE", 100)
    again = iter([lambda: say("of the handler")])

    def emit(record: logging.LogRecord) -> None:
        slow.seen.append((record.getMessage(), get_ident()))
        next(again, lambda: None)()

    monkeypatch.setattr(slow, "emit", emit)
    thread = started("first")
    thread.join(PATIENCE)

    assert slow.texts == ["first", "of the handler"]


def test_who_waits_for_a_handler_that_waits_for_him_goes_on(slow: Slow, monkeypatch) -> None:
    monkeypatch.setattr(LogWriter, "TURN", 0)
    monkeypatch.setattr(LogWriter, "PATIENCE", 0.05)
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)

    say("second")  # its turn does not come

    assert slow.texts == ["first"]
    slow.may_go_on.set()
    first.join(PATIENCE)
    assert slow.texts == ["first", "second"]


def test_a_line_that_cannot_be_written_does_not_keep_the_others(slow: Slow, monkeypatch) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    say("bad")
    say("good")
    real = slow.emit

    def choosy(record: logging.LogRecord) -> None:
        if record.getMessage() == "bad":
            raise RuntimeError
        real(record)

    monkeypatch.setattr(slow, "emit", choosy)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    slow.may_go_on.set()
    first.join(PATIENCE)

    assert slow.texts == ["first", "good"]


def test_a_handler_that_raises_does_not_stop_the_others(slow: Slow, monkeypatch) -> None:
    def broken(record: logging.LogRecord) -> None:
        raise RuntimeError

    monkeypatch.setattr(slow, "emit", broken)
    with pytest.raises(RuntimeError):
        say("lost")
    monkeypatch.undo()
    slow.may_go_on.set()

    say("written")

    assert slow.texts == ["written"]


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_of_its_parent(slow: Slow) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    reader, writer = os.pipe()

    if (pid := os.fork()) == 0:  # pragma: no cover - in another process
        slow.may_go_on.set()
        say("of the child")
        os.write(writer, " ".join(slow.texts).encode())
        os._exit(0)

    os.close(writer)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"first of the child"
    os.close(reader)
    slow.may_go_on.set()
    first.join(PATIENCE)


def test_a_process_that_ends_at_once_writes_what_was_left(slow: Slow) -> None:
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    say("left")
    Timer(0.1, slow.may_go_on.set).start()

    logs.flush()

    assert slow.texts == ["first", "left"]
    first.join(PATIENCE)


@pytest.mark.django_db(transaction=True)
def test_the_only_trace_of_a_message_is_written_before_it_is_gone(slow: Slow, policy) -> None:
    policy(on_poison="discard")
    id = send("mail").id
    batch = claim()
    first = started("first")
    assert slow.is_at_it.wait(PATIENCE)
    Timer(0.2, slow.may_go_on.set).start()

    fail(batch.token, [Failure(id, error="no", permanent=True)])

    assert [text for text in slow.texts if text.startswith("discarded")]
    first.join(PATIENCE)
