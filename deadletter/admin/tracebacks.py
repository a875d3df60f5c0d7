"""Where in the application did it happen? Its frames first, those of libraries folded away."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: `  File "shop/orders.py", line 3, in ship` begins a frame; its code follows, indented deeper.
_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+)(?:, in ([^\n]*))?$')
_BEGIN = "Traceback (most recent call last):"
#: What stands between the tracebacks of a chain.
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: Paths of what nobody on call wrote. The traceback may come from another machine: no prefixes.
_LIBRARY = re.compile(
    r"/(site|dist)-packages/|[/\\]lib[/\\]python3|^<frozen |[/\\]deadletter[/\\]"
    r"(worker[/\\]|lifecycle[/\\]|operations[/\\]|copies\.py$)|\\Lib\\"
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    file: str
    line: str
    function: str
    code: str
    library: bool


@dataclass(frozen=True, kw_only=True)
class Traceback:
    """`application` is read first; `whole` is the text as it was."""

    application: list[Frame]
    libraries: int
    #: The last lines: which exception, with which words.
    end: str
    whole: str


def read_traceback(text: str, *, texts: bool = True) -> Traceback | None:
    """
    Take a traceback apart. Text that is none is only `whole`.

    Without `texts` only the places are left: neither words of exceptions nor lines of source.
    """
    if not texts:
        seen = places(text)
        return Traceback(application=seen, libraries=0, end="", whole="") if seen else None
    if not text.strip():
        return None
    frames: list[Frame] = []
    end: list[str] = []
    for line in text.splitlines():
        found = _FRAME.match(line)
        if found:
            file, number, function = found.groups()
            end = []
            frames.append(
                Frame(
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


def places(text: str) -> list[Frame]:
    """Return the frames of the application in a traceback: file, line and function."""
    found: list[Frame] = []
    inside = False
    may_begin = True
    for line in text.splitlines():
        # The words of an exception may have lines of their own, and these look as they like.
        inside = (may_begin and line == _BEGIN) or (inside and line.startswith("  "))
        may_begin = line in _CHAINED or (may_begin and not line)
        frame = _FRAME.match(line) if inside else None
        if frame and not _LIBRARY.search(frame[1]):
            file, number, function = frame.groups()
            found.append(
                Frame(file=file, line=number, function=function or "", code="", library=False)
            )
    return found


def _with_code(frame: Frame, line: str) -> Frame:
    code = line.strip()
    if not code or set(code) <= set("~^ "):  # the marks below the code point into its column
        return frame
    joined = f"{frame.code}\n{code}" if frame.code else code
    return Frame(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        code=joined,
        library=frame.library,
    )
