"""Descriptions of exceptions: the text, traceback, class and place that are stored of a failure."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, TracebackType

from .text import storable_text

#: Bytes of traceback kept per attempt in the history.
TRACEBACK_LIMIT = 16 * 1024
#: Innermost frames of a traceback that are kept.
FRAMES = 50


@dataclass(frozen=True, kw_only=True)
class Description:
    """An exception as it is stored."""

    text: str
    traceback: str
    exception: str
    frame: str


def describe(error: BaseException) -> Description:
    """Return the description of an exception. Never raises."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _path(kind)
    text = storable_text(error)
    try:
        lines = _format(error)
    except BaseException as problem:  # noqa: BLE001 - any class may raise anything here
        lines = f"<no traceback: {type(problem).__name__}>"
    return Description(
        text=f"{name}: {text}" if text else name,
        # The end of a traceback says what happened, so the beginning is cut.
        traceback=storable_text(lines[-TRACEBACK_LIMIT:], limit=TRACEBACK_LIMIT),
        exception=name,
        frame=_top_frame(error.__traceback__),
    )


def _format(error: BaseException) -> str:
    """
    Return what `traceback.format_exception` returns, in a tenth of its time for most exceptions.

    That function parses the source of every frame to point at the expression, which is 1 ms per
    failure. A message that fails a thousand times fails at the same places, so frames are cached.
    """
    places = [(tb.tb_frame.f_code, tb.tb_lasti) for tb in _frames(error.__traceback__)][-FRAMES:]
    is_chained = error.__cause__ or (error.__context__ and not error.__suppress_context__)
    is_special = isinstance(error, SyntaxError | BaseExceptionGroup)
    # A place that occurs twice is a recursion, which format_exception abbreviates.
    if is_chained or is_special or not places or len(set(places)) < len(places):
        return "".join(traceback.format_exception(error, limit=-FRAMES))
    frames = [_frame(code, instruction) for code, instruction in places]
    return "".join(["Traceback (most recent call last):\n", *frames, *_last_lines(error)])


def _last_lines(error: BaseException) -> Sequence[str]:
    """Return what `traceback.format_exception_only` returns, without its walk along the chain."""
    kind = type(error)
    try:
        text = str(error)
        has_additions = isinstance(error, _SUGGESTING) or hasattr(error, "__notes__")
    except BaseException:  # noqa: BLE001 - any class may raise anything here
        has_additions = True
    if has_additions or not isinstance(kind.__module__, str):
        return traceback.format_exception_only(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else _path(kind)
    return [f"{name}: {text}\n" if text else f"{name}\n"]


#: Exceptions to which Python adds a suggestion ("Did you mean ...?").
_SUGGESTING = (AttributeError, ImportError, NameError)


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


@lru_cache(maxsize=2048)
def _frame(code: CodeType, instruction: int) -> str:
    """Return the lines that a traceback shows for one place in the source."""
    positions = next(islice(code.co_positions(), instruction // 2, None))
    line, end_line, column, end_column = positions
    summary = traceback.FrameSummary(
        code.co_filename,
        line,
        code.co_name,
        end_lineno=end_line,
        colno=column,
        end_colno=end_column,
    )
    return "".join(traceback.StackSummary.from_list([summary]).format())


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_LIBRARIES = tuple(
    {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN = __name__.partition(".")[0] + "."


def _top_frame(tb: TracebackType | None) -> str:
    """Return `module:function` of the innermost frame that is the application's."""
    application = anywhere = ""
    while tb is not None:
        code = tb.tb_frame.f_code
        module = str(tb.tb_frame.f_globals.get("__name__", "?"))
        anywhere = f"{module}:{code.co_qualname}"
        if not module.startswith(_OWN) and not code.co_filename.startswith(_LIBRARIES):
            application = anywhere
        tb = tb.tb_next
    return application or anywhere
