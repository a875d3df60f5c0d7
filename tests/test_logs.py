"""One event, one line, keys that do not change, and nothing of a payload in any of them."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.utils.log import RequireDebugFalse, RequireDebugTrue
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from deadletter import logs, send, testing
from tests.test_docs import names, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "worker.md"
#: Where one of several names is chosen at run time: the names, spelled out in the same file.
CHOSEN = [("message_poisoned", "message_discarded"), ("alert_raised", "alert_recovered")]
RESERVED = {"time", "level", "event", "text", "trace_id", "span_id"}
PRIVATE = ("payload", "headers", "history")


@dataclass
class Call:
    """A line of the source that logs."""

    names: tuple[str, ...]
    keys: frozenset[str]
    level: str
    values: str
    place: str


def calls() -> list[Call]:
    found = []
    for path in sorted((ROOT / "deadletter").rglob("*.py")):
        place = path.relative_to(ROOT / "deadletter").as_posix()
        if place == "logs.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "event":
                    found.append(read(node, place, path, level=ast.unparse(node.args[0]), at=1))
                elif node.func.id == "crash":
                    found.append(read(node, place, path, level="logging.ERROR", at=0))
    return found


def read(node: ast.Call, place: str, path: Path, *, level: str, at: int) -> Call:
    kind = node.args[at]
    if isinstance(kind, ast.Constant):
        chosen: tuple[str, ...] = (str(kind.value),)
    else:
        text = path.read_text()
        fitting = [names for names in CHOSEN if all(f'"{name}"' in text for name in names)]
        assert len(fitting) == 1, f"{place}: add the names of this event to CHOSEN"
        [chosen] = fitting
    # The exception goes to the record itself, as with any logger.
    fields = [keyword for keyword in node.keywords if keyword.arg != "exc_info"]
    keys = {keyword.arg for keyword in fields}
    assert None not in keys, f"{place}: an event spells its keys out"
    more = set() if at else {"error", "traceback"}
    return Call(
        chosen,
        frozenset(str(key) for key in keys | more),
        level,
        " ".join(ast.unparse(keyword.value) for keyword in fields),
        f"{place}:{node.lineno}",
    )


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for event, level, keys, _when in table(PAGE, "event"):
        listed = frozenset(names(keys))
        if keys.startswith("as "):
            listed = found[names(keys)[0]][1]
        found[names(event)[0]] = (level, listed)
    return found


@pytest.mark.slow
def test_every_event_is_documented_with_its_keys_and_no_other_is() -> None:
    used = {name: call.keys for call in calls() for name in call.names}

    assert used == {name: keys for name, (_level, keys) in documented().items()}


@pytest.mark.slow
def test_the_same_event_has_the_same_keys_everywhere() -> None:
    for call in calls():
        for name in call.names:
            assert call.keys == documented()[name][1], f"{call.place}: {name}"


@pytest.mark.slow
def test_every_event_is_documented_with_its_level() -> None:
    for call in calls():
        level = call.level.split(" if ")[0].removeprefix("logging.").lower()
        assert {documented()[name][0] for name in call.names} == {level}, call.place


@pytest.mark.slow
def test_no_event_carries_what_a_message_carries() -> None:
    for call in calls():
        words = " ".join([*call.keys, call.values])
        assert not [word for word in PRIVATE if word in words], call.place


@pytest.mark.slow
def test_no_key_hides_what_every_line_has() -> None:
    for call in calls():
        assert not call.keys & RESERVED, call.place


def test_nothing_is_logged_without_a_name() -> None:
    for path in (ROOT / "deadletter").rglob("*.py"):
        if path.name != "logs.py":
            assert not re.search(r"\blogger\.|getLogger", path.read_text()), path


HOSTILE = {
    "lines": "first\nsecond\r\nthird\x0b\x0c\x1c\x85\u2028\u2029fourth",
    "escapes": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J\x08\x08\x7f",
    "marks": "a\u202eb\u2066c\u200bd\u200fe\u061cf",
    "surrogate": "a\ud800b",
    "nul": "a\x00b",
    "forged": '2026-01-01 ERROR fake\n{"event": "worker_died"}',
    "braces": "{error} {0} {error!r} %s %(x)s {",
    "quotes": '"}{"event": "x", \\',
}
every_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
every_style = pytest.mark.parametrize("style", ["text", "json"])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Log as `run_worker --log-format` does, into a file that is encoded as a terminal would."""
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    before = (logs.logger.handlers, logs.logger.propagate, logs.logger.level)
    # An error of logging itself must be an error of the test.
    monkeypatch.setattr(logging.Handler, "handleError", lambda self, record: pytest.fail("broken"))

    def configure(style: str) -> Any:
        logs.configure(style)
        [handler] = logs.logger.handlers
        handler.setStream(terminal)  # type: ignore[attr-defined]
        return lambda: raw.getvalue().decode().splitlines()

    yield configure
    logs.logger.handlers, logs.logger.propagate, logs.logger.level = before


def assert_harmless(line: str) -> None:
    assert line.isprintable() or not [c for c in line if not c.isprintable() and c != "\xa0"]


@every_text
@every_style
def test_hostile_text_stays_on_its_line_and_does_nothing(log, style: str, text: str) -> None:
    lines = log(style)

    logs.event(logging.ERROR, "test", "of {name}: {error}", name=text, error=text)

    [line] = lines()
    assert_harmless(line)
    if style == "json":
        assert line.isascii()
        assert json.loads(line)["event"] == "test"
        assert set(json.loads(line)) == {"time", "level", "event", "text", "name", "error"}


@every_style
def test_a_crash_is_one_line_with_its_traceback(log, style: str) -> None:
    lines = log(style)

    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        logs.crash("test_failed", "worker {worker} failed", error, worker="w1")

    [line] = lines()
    assert line.count("in test_a_crash_is_one_line_with_its_traceback") == 1
    if style == "json":
        found = json.loads(line)
        assert found["text"] == "worker w1 failed: ValueError: first ⏎ second"
        assert found["error"] == "ValueError: first\nsecond"
        assert found["traceback"].endswith("ValueError: first\nsecond\n")


def failed_with(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@every_style
def test_an_event_with_an_exception_is_one_line_with_its_traceback(log, style: str) -> None:
    lines = log(style)

    error = failed_with("first\nsecond")
    logs.event(logging.ERROR, "test", "of {name}", exc_info=error, name="mail")

    [line] = lines()
    assert line.count("in failed_with") == 1
    if style == "json":
        assert json.loads(line)["text"] == "of mail"
        assert json.loads(line)["traceback"].endswith("ValueError: first\nsecond")


def test_on_a_terminal_a_traceback_has_lines_of_its_own_and_none_looks_like_an_event(log) -> None:
    lines = log("text")
    [handler] = logs.logger.handlers
    handler.setFormatter(logs.TextFormatter(is_terminal=True))

    error = failed_with("no\n2026-01-01 ERROR forged \x1b[31m\u202e")
    logs.event(logging.ERROR, "test", "of {name}", exc_info=error, name="mail")
    logs.event(logging.ERROR, "test", "next")

    first, *below, last = lines()
    assert (first[-13:], last[-10:]) == ("ERROR of mail", "ERROR next")
    assert below[0] == "    Traceback (most recent call last):"
    assert below[-1] == "    2026-01-01 ERROR forged \ufffd[31m\\u202e"
    assert all(line.startswith("    ") for line in below)


def test_a_record_has_its_exception_as_with_any_logger(caplog) -> None:
    error = failed_with("no")
    logs.event(logging.ERROR, "test", "here", exc_info=error)

    [record] = caplog.records
    assert record.exc_info == (ValueError, error, error.__traceback__)


def test_verbosity_two_asks_for_details_whatever_the_settings_say(log) -> None:
    logs.logger.setLevel(logging.INFO)
    logs.configure(None)
    before = logs.is_detailed()

    logs.configure(None, verbosity=2)

    assert (before, logs.is_detailed()) == (False, True)


@every_style
def test_what_others_log_by_our_logger_is_one_line_too(log, style: str) -> None:
    lines = log(style)

    try:
        raise ValueError("no")
    except ValueError:
        logs.logger.exception("by %s", "hand")

    [line] = lines()
    assert "Traceback" in line


@every_style
def test_long_values_are_cut(log, style: str) -> None:
    lines = log(style)

    logs.event(logging.ERROR, "test", "{error}", error="x" * 100_000)

    [line] = lines()
    assert len(line) < 8_000


@every_style
def test_a_value_of_any_class_is_logged(log, style: str) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    lines = log(style)

    logs.event(logging.ERROR, "test", "{error} {path}", error=Unprintable(), path=Path("/a\nb"))

    [line] = lines()
    assert "<unprintable RuntimeError>" in line


@every_style
def test_a_line_inside_a_trace_names_it(log, style: str) -> None:
    lines = log(style)
    tracer = TracerProvider().get_tracer("test")

    with tracer.start_as_current_span("request") as span:
        logs.event(logging.INFO, "test", "inside")
    logs.event(logging.INFO, "test", "outside")

    inside, outside = lines()
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    assert "trace_id" not in outside
    if style == "json":
        assert json.loads(inside)["trace_id"] == trace_id
        assert len(json.loads(inside)["span_id"]) == 16
    else:
        assert inside.endswith(f"inside ⏎ trace_id={trace_id}")


def test_an_event_says_where_it_was_logged(caplog) -> None:
    logs.event(logging.WARNING, "test", "here")

    [record] = caplog.records
    assert record.pathname == __file__
    assert record.funcName == "test_an_event_says_where_it_was_logged"


@pytest.mark.django_db(transaction=True)
def test_the_log_of_a_life_has_nothing_of_the_payload(log, handles, clock, policy) -> None:
    """A message that fails, is retried, dies, and one nobody knows: through the real executor."""
    lines = log("json")

    def fail(message: Any) -> None:
        raise RuntimeError("no stock")

    policy(max_attempts=2, cooldown=1)
    handles("ship", fail)
    send("ship", {"card": "4111-secret"}, headers={"session": "header-secret"})
    send("unknown", {"card": "4111-secret"})
    for _ in range(4):
        testing.drain()
        clock.advance(5)

    text = "\n".join(lines())
    assert {json.loads(line)["event"] for line in lines()} >= {
        "message_failed",
        "message_poisoned",
        "message_unregistered",
    }
    assert "secret" not in text


@pytest.fixture
def other() -> Iterator[logging.Logger]:
    """A logger of another package, below one that does not propagate."""
    parent, logger = logging.getLogger("other"), logging.getLogger("other.package")
    parent.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    for used in (parent, logger):
        used.handlers.clear()
        used.propagate = True
        used.setLevel(logging.NOTSET)


def set_handlers(logger: logging.Logger | None, *handlers: logging.Handler) -> None:
    """Replace those of the test run, too: pytest adds its own where a logger does not propagate."""
    assert logger is not None
    logger.handlers[:] = handlers


@pytest.mark.parametrize(
    ("filters", "debug", "expected"),
    [
        ([], False, True),
        ([RequireDebugTrue()], True, True),
        ([RequireDebugTrue()], False, False),
        ([RequireDebugFalse()], True, False),
        ([logging.Filter("somebody.else")], False, True),
    ],
)
def test_another_logger_writes_what_a_handler_of_its_parent_writes(
    other, settings, filters, debug: bool, expected: bool
) -> None:
    settings.DEBUG = debug
    handler = logging.StreamHandler(io.StringIO())
    handler.setLevel(logging.INFO)
    handler.filters = filters
    set_handlers(other.parent, handler)

    found = [logs.writes(other.name, level) for level in (logging.DEBUG, logging.INFO)]

    assert found == [False, expected]


def test_another_logger_does_not_write_below_the_level_of_its_handlers(other) -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setLevel(logging.ERROR)
    set_handlers(other, handler, logging.NullHandler())
    set_handlers(other.parent)

    found = [logs.writes(other.name, level) for level in (logging.INFO, logging.ERROR)]

    assert found == [False, True]


def test_another_logger_without_handlers_writes_warnings_as_python_does(other) -> None:
    set_handlers(other.parent)

    found = [logs.writes(other.name, level) for level in (logging.INFO, logging.WARNING)]

    assert found == [False, True]


def test_a_handler_above_a_logger_that_does_not_propagate_writes_nothing_of_it(other) -> None:
    set_handlers(other.parent, logging.StreamHandler(io.StringIO()))
    set_handlers(other)
    other.propagate = False

    found = [logs.writes(other.name, level) for level in (logging.INFO, logging.WARNING)]

    assert found == [False, True]


def test_another_logger_writes_where_all_lines_go_elsewhere_first(other, monkeypatch) -> None:
    """Sentry replaces this method, and keeps the lines as what happened before an error."""
    set_handlers(other.parent)
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda logger, record: None)

    found = [logs.writes(other.name, level) for level in (logging.DEBUG, logging.INFO)]

    assert found == [False, True]
