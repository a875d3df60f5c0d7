"""What is kept of a failure: printable text, a reason, and a fingerprint to group it by."""

from __future__ import annotations

import hashlib
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import islice
from types import CodeType, TracebackType
from typing import Any

from .status import FailureReason
from .text import short_repr, storable_text

#: Bytes of traceback kept per attempt in the history.
TRACEBACK_LIMIT = 16 * 1024
#: Attempts remembered per message; the oldest entry goes first.
HISTORY_LIMIT = 25


@dataclass(frozen=True, kw_only=True)
class Description:
    """An exception as it is stored."""

    text: str
    traceback: str
    exception: str
    frame: str


def describe(error: BaseException) -> Description:
    """Take from an exception what an operator needs. Never raises."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _path(kind)
    text = storable_text(error)
    try:
        lines = _formatted(error)
    except BaseException as problem:  # noqa: BLE001 - as above
        lines = f"<no traceback: {type(problem).__name__}>"
    return Description(
        text=f"{name}: {text}" if text else name,
        # The end of a traceback says what happened: cut the beginning.
        traceback=storable_text(lines[-TRACEBACK_LIMIT:], limit=TRACEBACK_LIMIT),
        exception=name,
        frame=_top_frame(error.__traceback__),
    )


#: Frames of a traceback that are kept: the innermost.
FRAMES = 50


def _formatted(error: BaseException) -> str:
    """
    Write what `traceback.format_exception` writes, in a tenth of its time for a plain exception.

    It parses the source of every frame to point at the expression, 1 ms of every failure; a message
    that fails a thousand times fails at the same places.
    """
    places = [(tb.tb_frame.f_code, tb.tb_lasti) for tb in _frames(error.__traceback__)][-FRAMES:]
    is_chained = error.__cause__ or (error.__context__ and not error.__suppress_context__)
    is_special = isinstance(error, SyntaxError | BaseExceptionGroup)
    # A place that comes twice is a recursion, which is written shorter.
    if is_chained or is_special or not places or len(set(places)) < len(places):
        return "".join(traceback.format_exception(error, limit=-FRAMES))
    frames = [_frame(code, instruction) for code, instruction in places]
    return "".join(["Traceback (most recent call last):\n", *frames, *_last_lines(error)])


def _last_lines(error: BaseException) -> Sequence[str]:
    """Write what `traceback.format_exception_only` writes, which walks the chain to do it."""
    kind = type(error)
    try:
        text = str(error)
        is_added_to = isinstance(error, _SUGGESTING) or hasattr(error, "__notes__")
    except BaseException:  # noqa: BLE001 - any class may raise anything here
        is_added_to = True
    if is_added_to or not isinstance(kind.__module__, str):
        return traceback.format_exception_only(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else _path(kind)
    return [f"{name}: {text}\n" if text else f"{name}\n"]


#: Python adds what may have been meant.
_SUGGESTING = (AttributeError, ImportError, NameError)


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


@lru_cache(maxsize=2048)
def _frame(code: CodeType, instruction: int) -> str:
    """Return the lines of one place in the source, as a traceback shows them."""
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


def fingerprint(name: str, cause: str, frame: str = "") -> str:
    """
    Group failures that are the same to an operator: message name, exception, place.

    No line numbers and no values, so that neither a deploy nor a customer makes a new group.
    """
    return hashlib.sha256("\x1f".join((name, cause, frame)).encode()).hexdigest()[:16]


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_LIBRARIES = tuple(
    {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OWN = __name__.partition(".")[0] + "."


def _top_frame(tb: TracebackType | None) -> str:
    """Return `module:function` of the innermost frame of the application."""
    application = anywhere = ""
    while tb is not None:
        code = tb.tb_frame.f_code
        module = str(tb.tb_frame.f_globals.get("__name__", "?"))
        anywhere = f"{module}:{code.co_qualname}"
        if not module.startswith(_OWN) and not code.co_filename.startswith(_LIBRARIES):
            application = anywhere
        tb = tb.tb_next
    return application or anywhere


@dataclass(frozen=True)
class Activity:
    """A message that did one activity of an instance."""

    name: str
    id: int | None = None

    def __str__(self) -> str:
        return f"activity {self.name}#{self.id}"


@dataclass(frozen=True)
class Orchestration:
    """A message that drove an instance."""

    instance: str
    execution_id: int | None = None

    def __str__(self) -> str:
        return f"orchestration {self.instance}"


@dataclass(frozen=True)
class Plain:
    """A message that belongs to nothing larger."""

    name: str

    def __str__(self) -> str:
        return f"message {self.name}"


@dataclass(frozen=True)
class FailedDeserialization:
    """A message whose payload could never be read."""

    error: str

    def __str__(self) -> str:
        return f"message that cannot be decoded ({self.error})"


#: How the verdict on a message begins that did not use up its attempts.
PERMANENT, GIVEN_UP = "failed permanently", "given up by its worker"


def _end(reason: FailureReason, verdict: str, attempts: int) -> str:
    """Say how a message came to its end: from names and numbers only, which everybody may read."""
    tries = f"{attempts} attempt" if attempts == 1 else f"{attempts} attempts"
    if reason == FailureReason.EXPIRED:
        return f"expired after {tries}"
    if reason == FailureReason.OPERATOR:
        return f"was poisoned by an operator after {tries}"
    if verdict.startswith(PERMANENT):
        return f"failed permanently at attempt {attempts}"
    if verdict.startswith(GIVEN_UP):
        return f"was given up by its worker at attempt {attempts}"
    return f"exceeded {attempts} attempts"


MessageType = Activity | Orchestration | Plain | FailedDeserialization

_TYPES: dict[str, type[MessageType]] = {
    "activity": Activity,
    "orchestration": Orchestration,
    "message": Plain,
    "failed_deserialization": FailedDeserialization,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}

#: What an error is about, and so who can do something about it.
CATEGORIES = ("infrastructure", "configuration", "application", "poison")


@dataclass(frozen=True, kw_only=True)
class ErrorDetails:
    """Why something failed for good, as a value that owners can store and pass on."""

    category: str
    text: str
    attempts: int = 0
    max_attempts: int | None = None
    last_error: str | None = None
    message_type: MessageType | None = None
    #: Whose message it was; None for messages that belong to nothing larger.
    instance: str | None = None
    execution_id: int | None = None
    #: The poison record of this message has all the rest.
    message_id: int | None = None
    #: The message as it died, for debugging. Only on the record's own error: what owners store and
    #: pass on has no payloads.
    message: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(
                f"category: expected one of {CATEGORIES}, got {short_repr(self.category)}"
            )

    @property
    def is_retryable(self) -> bool:
        """Only trouble of the infrastructure passes by itself; poison never does."""
        return self.category == "infrastructure"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def Poison(
        cls,
        *,
        attempts: int,
        max_attempts: int | None,
        last_error: str | None,
        message_type: MessageType,
        instance: str | None = None,
        execution_id: int | None = None,
        message_id: int | None = None,
        message: Mapping[str, Any] | None = None,
        reason: FailureReason = FailureReason.POISON_MESSAGE,
        verdict: str = "",
    ) -> ErrorDetails:
        """The error of a quarantined message. `reason` and `verdict` are those of its record."""
        limit = "no limit" if max_attempts is None else f"max {max_attempts}"
        end = _end(reason, verdict, attempts)
        return cls(
            category="poison",
            text=f"poison: {message_type} {end} ({limit})",
            attempts=attempts,
            max_attempts=max_attempts,
            last_error=last_error,
            message_type=message_type,
            instance=instance,
            execution_id=execution_id,
            message_id=message_id,
            message=message,
        )

    @classmethod
    def Application(cls, text: object) -> ErrorDetails:
        """An error the application decided on; an exception is described as a failure is."""
        if isinstance(text, BaseException):
            text = describe(text).text
        return cls(category="application", text=storable_text(text))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can keep it; `from_dict` reads it back equal."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.message is None:
            del found["message"]
        if self.message_type is not None:
            kind = {"type": _NAMES[type(self.message_type)]}
            found["message_type"] = kind | vars(self.message_type)
        return found

    @classmethod
    def from_dict(cls, found: Any) -> ErrorDetails:
        """Raises ValueError for anything that `as_dict` did not write."""
        try:
            values = {item.name: found[item.name] for item in fields(cls) if item.name in found}
            if (given := values.get("message_type")) is not None:
                rest = {key: value for key, value in given.items() if key != "type"}
                values["message_type"] = _TYPES[given["type"]](**rest)
            if not isinstance(values["text"], str):
                raise TypeError(f"text is {short_repr(values['text'])}")
            return cls(**values)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not an error: {describe(error).text}") from None


def cause_of(reason: FailureReason, exception: str | None) -> str:
    """Name what a group of failures has in common: the exception, or the reason without one."""
    return exception or reason.name
