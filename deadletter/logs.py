"""
One event, one line: text for people, stable keys for machines.

Every line carries `event` (a name that does not change) and its fields; payloads never. Names and
errors come from outside, so line breaks and control characters are made harmless first. What is
logged inside a trace names it. All events and their keys: docs/worker.md.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from . import tracing
from .error_details import describe
from .log_writer import Pen
from .text import log_line, storable_text

logger = logging.getLogger("deadletter")

#: Bytes of one value in the text of a line, and among its fields.
SHOWN = 500
KEPT = 4_096


def event(
    level: int, kind: str, text: str, /, *, exc_info: BaseException | None = None, **fields: Any
) -> None:
    """Log `text`, filled with the fields, as an event of this kind, with its exception if any."""
    if logger.isEnabledFor(level):
        kept = fields
        shown = {k: v for k, v in fields.items() if _is_harmless(v)}
        if len(shown) < len(fields):
            kept = {key: _kept(value) for key, value in fields.items()}
            shown = {key: _shown(value, fields[key]) for key, value in kept.items()}
        extra = {"event": kind, "fields": kept | tracing.ids()}
        line = text.format(**shown)
        # What `logger.log` does, but it would look for the caller and find this function.
        code, number = (frame := sys._getframe(1)).f_code, frame.f_lineno
        raised = None
        if exc_info is not None:
            raised = type(exc_info), exc_info, exc_info.__traceback__
        record = logger.makeRecord(
            logger.name, level, code.co_filename, number, line, (), raised, code.co_name, extra
        )
        if exc_info is not None:
            # Harmless and bounded; formatters take this text instead of making their own.
            record.exc_text = _traceback(exc_info)
        _pen.write(record)


def is_detailed() -> bool:
    """Whether `run_worker -v 2`, or LOGGING, asks for every message and every traceback."""
    return logger.isEnabledFor(logging.DEBUG)


def crash(kind: str, text: str, error: BaseException, /, **fields: Any) -> None:
    """Log an exception that nobody expected, on one line with its traceback."""
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
    """Return the end of a traceback, which says what happened, as text that can do nothing."""
    return describe(error).traceback[-KEPT:].rstrip("\n")


def flush() -> None:
    """Write what is left to be written; for who ends this process without further ado."""
    _pen.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


_pen = Pen(logger.handle)


def _shown(kept: object, value: object) -> object:
    if not isinstance(kept, str):
        return kept
    return log_line(kept if len(kept) <= SHOWN // 4 else storable_text(value, limit=SHOWN))


def _kept(value: object) -> object:
    return value if _is_plain(value) else storable_text(value, limit=KEPT)


def _is_harmless(value: object) -> bool:
    """Whether a value can be kept and shown as it is; almost all can."""
    if type(value) is str:
        return len(value) <= SHOWN // 4 and value.isascii() and value.isprintable()
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float))


class _Formatter(logging.Formatter):
    """Takes the text of an exception from `describe`: bounded, and nothing in it can act."""

    def formatException(self, exc_info: Any) -> str:
        return _traceback(exc_info[1])


class TextFormatter(_Formatter):
    """
    `--log-format text`: one event a line, with its traceback and its trace if it has them.

    On a terminal the traceback has lines of its own, indented: no line of it looks like an event.
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
    """`--log-format json`: one object a line, in ASCII, so that nothing in it can act."""

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
    Log to standard error as "text" or "json"; None: as LOGGING says, if it says anything.

    From verbosity 2 on also events of the level DEBUG, whatever LOGGING says of the logger.
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
