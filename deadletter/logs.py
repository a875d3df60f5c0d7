"""
Log events: one line each, with a text for people and stable keys for programs.

Every line has `event` (a name that does not change) and its fields, never a payload. Names and
errors come from outside, so line breaks and control characters are escaped first. Lines logged
inside a trace carry its ids. All events and their keys: docs/worker.md.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.conf import settings
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from . import tracing
from .descriptions import describe
from .log_writer import LogWriter
from .text import log_line, storable_text

logger = logging.getLogger("deadletter")

#: Bytes of one value in the text of a line (SHOWN) and among its fields (KEPT).
SHOWN = 500
KEPT = 4_096


def event(
    level: int, kind: str, text: str, /, *, exc_info: BaseException | None = None, **fields: Any
) -> None:
    """Log `text`, formatted with the fields, as an event of this kind."""
    if logger.isEnabledFor(level):
        kept = fields
        shown = {k: v for k, v in fields.items() if _is_safe(v)}
        if len(shown) < len(fields):
            kept = {key: _kept(value) for key, value in fields.items()}
            shown = {key: _shown(value, fields[key]) for key, value in kept.items()}
        extra = {"event": kind, "fields": kept | tracing.span_ids()}
        line = text.format(**shown)
        # Not `logger.log`: it would report this function as the caller.
        code, number = (frame := sys._getframe(1)).f_code, frame.f_lineno
        raised = None
        if exc_info is not None:
            raised = type(exc_info), exc_info, exc_info.__traceback__
        record = logger.makeRecord(
            logger.name, level, code.co_filename, number, line, (), raised, code.co_name, extra
        )
        if exc_info is not None:
            # Safe and bounded; formatters use this text instead of formatting the exception.
            record.exc_text = _traceback(exc_info)
        _writer.write(record)


def writes(name: str, level: int) -> bool:
    """
    Return whether a logger of another package would write a line of this level.

    A level that is enabled does not mean so: Django enables INFO for its loggers, and the handler
    they have by default writes only if DEBUG is on.
    """
    found = _logger(name)
    if not found.isEnabledFor(level):
        return False
    if type(found).callHandlers.__module__ != logging.__name__:
        return True  # replaced, for example by Sentry, which keeps lines that no handler writes
    has_handlers = False
    logger: logging.Logger | None = found
    while logger is not None:
        for handler in logger.handlers:
            has_handlers = True
            if handler.level <= level and not _is_silent(handler):
                return True
        logger = logger.parent if logger.propagate else None
    last = logging.lastResort
    return not has_handlers and last is not None and last.level <= level


@cache
def _logger(name: str) -> logging.Logger:
    # Kept: `getLogger` takes a lock, and this is asked for every task.
    return logging.getLogger(name)


def _is_silent(handler: logging.Handler) -> bool:
    """Return whether a handler writes nothing at all; other filters may let a line pass."""
    for found in handler.filters:
        if type(found) is RequireDebugTrue and not settings.DEBUG:
            return True
        if type(found) is RequireDebugFalse and settings.DEBUG:
            return True
    return isinstance(handler, logging.NullHandler)


def is_detailed() -> bool:
    """Return True if `run_worker -v 2` or LOGGING asks for every message and every traceback."""
    return logger.isEnabledFor(logging.DEBUG)


def crash(kind: str, text: str, error: BaseException, /, **fields: Any) -> None:
    """Log an unexpected exception on one line, with its traceback."""
    described = describe(error)
    trace = described.traceback[-KEPT:]
    event(
        logging.ERROR,
        kind,
        text + ": {error}",
        **fields,
        error=described.text,
        traceback=trace,
        exc_info=error,
    )


def _traceback(error: BaseException) -> str:
    """Return the end of a traceback, which says what happened, as safe text."""
    return describe(error).traceback[-KEPT:].rstrip("\n")


def flush() -> None:
    """Write all queued records; for code that ends the process without exit handlers."""
    _writer.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


_writer = LogWriter(logger.handle)


def _shown(kept: object, value: object) -> object:
    if not isinstance(kept, str):
        return kept
    return log_line(kept if len(kept) <= SHOWN // 4 else storable_text(value, limit=SHOWN))


def _kept(value: object) -> object:
    return value if _is_plain(value) else storable_text(value, limit=KEPT)


def _is_safe(value: object) -> bool:
    """Return True if a value can be kept and shown unchanged, as almost all can."""
    if type(value) is str:
        return len(value) <= SHOWN // 4 and value.isascii() and value.isprintable()
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float))


class _Formatter(logging.Formatter):
    """Formats exceptions with `describe`: bounded, without control characters."""

    def formatException(self, exc_info: Any) -> str:
        return _traceback(exc_info[1])


class TextFormatter(_Formatter):
    """
    `--log-format text`: one event per line, with its traceback and trace id if it has them.

    On a terminal the traceback has its own lines, indented, so that none looks like an event.
    """

    def __init__(self, *, is_terminal: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        trace = f"\ntrace_id={fields['trace_id']}" if "trace_id" in fields else ""
        text = super().format(record)
        below = record.exc_text or ""
        if not below or not self._is_terminal:
            return log_line(text + trace)
        first = text.removesuffix(below).rstrip("\n") + trace
        return "\n    ".join([log_line(first), *map(log_line, below.split("\n"))])


class JSONFormatter(_Formatter):
    """`--log-format json`: one object per line, in ASCII: no control or direction characters."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "event": getattr(record, "event", "log"),
            "text": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and "traceback" not in line:
            line["traceback"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line, default=storable_text)


def configure(style: str | None, *, verbosity: int = 1) -> None:
    """
    Log to standard error as "text" or "json"; None: as LOGGING configures it, else as text.

    From verbosity 2 on DEBUG events are logged too, whatever level LOGGING sets.
    """
    if verbosity >= 2:
        logger.setLevel(logging.DEBUG)
    if style is None and logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    text = TextFormatter(is_terminal=handler.stream.isatty())
    handler.setFormatter(JSONFormatter() if style == "json" else text)
    logger.handlers = [handler]
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
