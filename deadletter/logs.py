"""
One event, one line: text for people, stable keys for machines.

Every line carries `event` (a name that does not change) and its fields; payloads never. Names and
errors come from outside, so line breaks and control characters are made harmless first.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from .failures import printable

logger = logging.getLogger("deadletter")


def event(level: int, kind: str, text: str, /, **fields: Any) -> None:
    """Log `text`, filled with the fields, as an event of this kind."""
    if logger.isEnabledFor(level):
        shown = {key: _line(value) for key, value in fields.items()}
        logger.log(level, text.format(**shown), extra={"event": kind, "fields": fields})


def _line(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value, limit=500)
    return text.replace("\n", " ⏎ ").replace("\t", " ").translate(_TURNING)


#: Marks that would turn or hide the rest of a line on a terminal, spelled out.
_TURNING = {
    number: f"\\u{number:04x}"
    for marks in ((0x061C,), range(0x200B, 0x2010), range(0x2028, 0x202F), range(0x2060, 0x2070))
    for number in marks
}


class JSONFormatter(logging.Formatter):
    """`--log-format json`: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "event": getattr(record, "event", "log"),
            "text": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(style: str | None) -> None:
    """Log to standard error as "text" or "json"; None: as LOGGING says, if it says anything."""
    if style is None and logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        JSONFormatter()
        if style == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logger.handlers = [handler]
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
