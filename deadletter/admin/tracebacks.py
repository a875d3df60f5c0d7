"""Stored tracebacks, taken apart: frames of the application first, frames of libraries counted."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    r"(worker[/\\]|lifecycle[/\\]|operations[/\\]|(forks|copies)\.py$)|\\Lib\\"
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
            frames[-1] = _with_code(frames[-1], line)
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


def _with_code(frame: TracebackFrame, line: str) -> TracebackFrame:
    code = line.strip()
    if not code or set(code) <= set("~^ "):  # marks below the code
        return frame
    joined = f"{frame.code}\n{code}" if frame.code else code
    return TracebackFrame(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=joined,
        library=frame.library,
    )
