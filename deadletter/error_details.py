"""ErrorDetails: why a message or an instance failed for good, as a value that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .descriptions import describe
from .status import FailureReason
from .text import short_repr, storable_text

#: Attempts kept in the history of a message; the oldest entry is dropped first.
HISTORY_LIMIT = 25


@dataclass(frozen=True)
class Activity:
    """A message that performs one activity of an instance."""

    name: str
    id: int | None = None

    def __str__(self) -> str:
        return f"activity {self.name}#{self.id}"


@dataclass(frozen=True)
class Orchestration:
    """A message that advances an instance."""

    instance: str
    execution_id: int | None = None

    def __str__(self) -> str:
        return f"orchestration {self.instance}"


@dataclass(frozen=True)
class Plain:
    """A message that belongs to no instance."""

    name: str

    def __str__(self) -> str:
        return f"message {self.name}"


@dataclass(frozen=True)
class FailedDeserialization:
    """A message whose payload cannot be decoded."""

    error: str

    def __str__(self) -> str:
        return f"message that cannot be decoded ({self.error})"


#: How the verdict begins if a message died before it used up its attempts.
PERMANENT, GIVEN_UP = "failed permanently", "given up by its worker"


def _end(reason: FailureReason, verdict: str, attempts: int) -> str:
    """Say how a message ended. Only names and numbers, which need no permission to be read."""
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

#: What an error is about, and so who can act on it.
CATEGORIES = ("infrastructure", "configuration", "application", "poison")


@dataclass(frozen=True, kw_only=True)
class ErrorDetails:
    """Why a message or an instance failed for good. Instances store it and pass it on."""

    category: str
    text: str
    attempts: int = 0
    max_attempts: int | None = None
    last_error: str | None = None
    message_type: MessageType | None = None
    #: The instance that the message belongs to; None: it belongs to none.
    instance: str | None = None
    execution_id: int | None = None
    #: The poison record of this message has everything else.
    message_id: int | None = None
    #: The message as it died, for debugging. Only the error of a poison record has it: errors that
    #: instances store and pass on contain no payloads.
    message: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(
                f"category: expected one of {CATEGORIES}, got {short_repr(self.category)}"
            )

    @property
    def is_retryable(self) -> bool:
        """True for infrastructure errors, which may pass by themselves. Poison never does."""
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
        """Return the error of a quarantined message; `reason` and `verdict` are its record's."""
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
        """Return an error that the application decided on, from a text or an exception."""
        if isinstance(text, BaseException):
            text = describe(text).text
        return cls(category="application", text=storable_text(text))

    def as_dict(self) -> dict[str, Any]:
        """Return the error as JSON values; `from_dict` reads it back equal."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.message is None:
            del found["message"]
        if self.message_type is not None:
            kind = {"type": _NAMES[type(self.message_type)]}
            found["message_type"] = kind | vars(self.message_type)
        return found

    @classmethod
    def from_dict(cls, found: Any) -> ErrorDetails:
        """Read what `as_dict` returned. Raises ValueError for anything else."""
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
