"""
The history of a message for a page: its attempts, latest first, with their tracebacks.

A retry by a person or an edit begins a new life: the attempts until the next death. A traceback is
taken apart: frames of the application first, frames of libraries counted.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db import models
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from ..models import Damaged, Result
from .error_text import hidden_text
from .render import ShownValue, read_json, reason_name, show_original

#: `  File "shop/orders.py", line 3, in ship` begins a frame; its code follows, indented deeper.
_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+)(?:, in ([^\n]*))?$')
_BEGIN = "Traceback (most recent call last):"
#: The lines between the tracebacks of a chain.
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: Paths of libraries. The traceback may come from another machine, so no prefix is known.
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|[/\\]lib[/\\]python3|^<frozen |[/\\]deadletter[/\\]"
    r"(worker[/\\]|lifecycle[/\\]|operations[/\\]|tasks[/\\]execution\.py$|(forks|copies)\.py$)"
    r"|\\Lib\\"
)


@dataclass(frozen=True, kw_only=True)
class TracebackFrame:
    file: str
    line: str
    function: str
    code: str
    library: bool


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """A traceback; `application` is shown first, `whole` is the stored text."""

    application: list[TracebackFrame]
    libraries: int
    #: The last lines: the exception and its text.
    end: str
    whole: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One entry of the history: a failed attempt, or an edit by a person."""

    number: Any = None
    at: datetime | str | None = None
    #: Time since the previous entry.
    gap: str = ""
    worker: str = ""
    duration: str = ""
    reason: str = ""
    error: str = ""
    traceback: Traceback | None = None
    edited: bool = False
    #: The payload before the edit; None without the permission to see payloads.
    original: ShownValue | None = None


@dataclass(frozen=True, kw_only=True)
class Life:
    """Attempts from a send or a retry until the death that ended them, latest first."""

    current: bool
    attempts: list[Attempt] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    lives: list[Life] = field(default_factory=list)
    problem: str = ""

    @property
    def earlier(self) -> int:
        return sum(not life.current for life in self.lives)


def timeline(record: Any, *, payloads: bool) -> Timeline:
    """
    Read the history of a message or record; a damaged one is a problem in words, not an error.

    Without `payloads` errors are shown by class and place only.
    """
    entries, problem = _entries(record)
    lives: list[list[Attempt]] = []
    before: datetime | str | None = None
    last_number = 0
    for entry in entries:
        number = entry.get("attempt")
        number = number if isinstance(number, int) else None
        edited = "original_payload" in entry
        if not lives or edited or (number is not None and number <= last_number):
            lives.append([])
        attempt = _attempt(entry, before, payloads=payloads, edited=edited)
        lives[-1].append(attempt)
        last_number = 0 if edited else number or last_number
        before = attempt.at
    # Poisoned by hand right after a retry: it was not tried in its last life. A result does not say
    # how many attempts it had since the last retry.
    alive = bool(lives) and (isinstance(record, Result) or record.attempts > 0)
    shown = [
        Life(current=alive and n == len(lives) - 1, attempts=attempts[::-1])
        for n, attempts in enumerate(lives)
    ]
    return Timeline(lives=shown[::-1], problem=problem)


def _entries(record: models.Model) -> tuple[list[dict[str, Any]], str]:
    stored = read_json(record, "history")
    value = stored.value
    if isinstance(value, Damaged) or stored.problem:
        return [], stored.problem
    if value is None and isinstance(record, Result):
        return [], ""
    if not isinstance(value, list):
        return [], gettext("The history is damaged: it is not a list of attempts.")
    # The history keeps 25 entries; a damaged row may have any number, so 200 are read.
    return [entry if isinstance(entry, dict) else {"error": entry} for entry in value[-200:]], ""


def _attempt(
    entry: dict[str, Any], before: datetime | str | None, *, payloads: bool, edited: bool
) -> Attempt:
    reason = entry.get("reason")
    at, gap = _moment(entry.get("at")), -1.0
    if isinstance(at, datetime) and isinstance(before, datetime):
        with suppress(TypeError):  # one of them has no time zone
            gap = (at - before).total_seconds()
    error, traceback = str(entry.get("error") or ""), str(entry.get("traceback") or "")
    return Attempt(
        number=entry.get("attempt"),
        at=at,
        gap=_span(gap) if gap >= 0 else "",
        worker=str(entry.get("worker") or ""),
        duration=_duration(entry),
        reason=reason_name(reason if isinstance(reason, int) else None),
        error=error if payloads or edited else hidden_text(error, traceback),
        traceback=read_traceback(traceback, texts=payloads),
        edited=edited,
        original=show_original(entry["original_payload"]) if edited and payloads else None,
    )


def _duration(entry: dict[str, Any]) -> str:
    for key in ("duration", "seconds"):
        value = entry.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return show_duration(float(value))
    return ""


def show_duration(seconds: float) -> str:
    """Return how long an attempt took: 0.35 s, 12 min."""
    # Stored to the millisecond: a handler that raised at once took 0.
    return gettext("under 1 ms") if seconds < 0.001 else _span(seconds)


def _span(seconds: float) -> str:
    if seconds < 100:
        # 99.7 with two digits would be "1e+02".
        return gettext("%(n)s s") % {"n": f"{seconds:.{2 if seconds < 10 else 3}g}"}
    if seconds < 100 * 60:
        return gettext("%(n)s min") % {"n": f"{seconds / 60:.0f}"}
    if seconds < 100 * 3600:
        return gettext("%(n)s h") % {"n": f"{seconds / 3600:.0f}"}
    return gettext("%(n)s days") % {"n": f"{seconds / 86400:.0f}"}


def _moment(value: Any) -> datetime | str | None:
    try:
        return parse_datetime(value) or str(value)
    except (TypeError, ValueError, OverflowError):
        return None if value is None else str(value)


def read_traceback(text: str, *, texts: bool = True) -> Traceback | None:
    """
    Take a traceback apart. Any other text is only `whole`.

    Without `texts` only the places are left: no texts of exceptions and no lines of source.
    """
    if not texts:
        seen = places(text)
        return Traceback(application=seen, libraries=0, end="", whole="") if seen else None
    if not text.strip():
        return None
    frames: list[TracebackFrame] = []
    end: list[str] = []
    for line in text.splitlines():
        found = _FRAME.match(line)
        if found:
            file, number, function = found.groups()
            end = []
            frames.append(
                TracebackFrame(
                    file=file,
                    line=number,
                    function=function or "",
                    code="",
                    library=bool(_LIBRARY.search(file)),
                )
            )
        elif frames and line.startswith("    ") and not end:
            code, before = line.strip(), frames[-1].code
            if code.strip("~^ "):  # not only marks below the code
                frames[-1] = replace(frames[-1], code=f"{before}\n{code}" if before else code)
        else:
            end.append(line)
    application = [frame for frame in frames if not frame.library]
    return Traceback(
        application=application,
        libraries=len(frames) - len(application),
        end="\n".join(end).strip() if frames else "",
        whole=text,
    )


def places(text: str) -> list[TracebackFrame]:
    """Return the frames of the application in a traceback: file, line and function."""
    found: list[TracebackFrame] = []
    inside = False
    may_begin = True
    for line in text.splitlines():
        # The text of an exception may have several lines, which may look like frames.
        inside = (may_begin and line == _BEGIN) or (inside and line.startswith("  "))
        may_begin = line in _CHAINED or (may_begin and not line)
        frame = _FRAME.match(line) if inside else None
        if frame and not _LIBRARY.search(frame[1]):
            file, number, function = frame.groups()
            found.append(
                TracebackFrame(
                    file=file, line=number, function=function or "", code="", library=False
                )
            )
    return found
