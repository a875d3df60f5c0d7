"""Filters of poison records and messages, for Python, the command line, the admin and audits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from .. import clock
from ..models import Message, MessageTag, PoisonRecord, State
from ..models.poison import PoisonQuerySet
from ..patterns import is_pattern
from ..redaction import redact_tag
from ..status import FailureReason, Status
from ..text import short_repr
from .filter_values import check_text, read_tag
from .queues import matching_queues


@dataclass(frozen=True, kw_only=True)
class PoisonFilter:
    """
    A selection of poison records. Every field narrows it; None matches everything.

    `queue` is a name or a pattern such as `tenant-a/*`. `text`, `kind` and `reason` have no index.
    Raises ValueError, naming the field, for a value that no record can have.
    """

    queue: str | None = None
    name: str | None = None
    kind: str | None = None
    instance: str | None = None
    #: The reason of the quarantine or of the last failure; a number or a name.
    reason: int | str | None = None
    fingerprint: str | None = None
    exception: str | None = None
    stream: str | None = None
    #: "key=value": a tag that the failed message had.
    tag: str | None = None
    #: A part of the last error.
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    #: No record after this id: an act touches only records that its preview counted.
    up_to: int | None = None
    #: The queues that the pattern matched when the filter was fixed.
    queues: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.reason, str):
            # A frozen dataclass is written like this, and only here.
            object.__setattr__(self, "reason", as_reason(self.reason))
        for key, value in asdict(self).items():
            if isinstance(value, str):
                check_text(key, value)
            elif isinstance(value, datetime) and value.tzinfo is None:
                raise ValueError(f"{key}: needs a time zone, for example 2026-01-31T12:00:00+00:00")
        if self.tag is not None:
            read_tag(self.tag)

    def __bool__(self) -> bool:
        derived = ("up_to", "queues")
        return any(value is not None for key, value in asdict(self).items() if key not in derived)

    def records(self, using: str) -> PoisonQuerySet:
        """Return the matching records, oldest first, without their payloads."""
        rows = PoisonRecord.objects.using(using).without_bodies().order_by("pk")
        for key in ("name", "kind", "instance", "fingerprint", "exception", "stream"):
            if (value := getattr(self, key)) is not None:
                rows = rows.filter(**{key: value})
        if self.queue is not None and is_pattern(self.queue):
            rows = rows.filter(queue__in=self._matched(using))
        elif self.queue is not None:
            rows = rows.filter(queue=self.queue)
        if self.reason is not None:
            column = "reason" if self.reason in _VERDICTS else "last_failure_reason"
            rows = rows.filter(**{column: self.reason})
        if self.tag is not None:
            key, value = read_tag(self.tag)
            tags = MessageTag.objects.using(using).filter(key=key, value=value)
            if redact_tag(key, value) != value:
                tags = tags.none()
            rows = rows.filter(message_id__in=tags.values("message_id"))
        if self.text is not None:
            rows = rows.filter(last_error__icontains=self.text)
        if self.since is not None:
            rows = rows.filter(poisoned_at__gte=self.since)
        if self.until is not None:
            rows = rows.filter(poisoned_at__lt=self.until)
        if self.up_to is not None:
            rows = rows.filter(pk__lte=self.up_to)
        return rows

    def fixed(self, using: str) -> PoisonFilter:
        """Return the filter as of now: records that die later do not match it."""
        # The newest id of the whole table: one probe of the primary key, whatever the filter.
        ids = PoisonRecord.objects.using(using).order_by("-pk").values_list("pk", flat=True)
        newest = ids.first()
        is_open = self.queue is None or not is_pattern(self.queue)
        queues = None if is_open else self._matched(using)
        return replace(self, up_to=newest or 0, queues=queues)

    def _matched(self, using: str) -> tuple[str, ...]:
        if self.queues is not None:
            return self.queues
        return tuple(matching_queues(self.queue or "", or_poison=True, using=using))

    def as_dict(self) -> dict[str, Any]:
        """Return the filter as JSON values; `from_dict` reads it back."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        return {
            key: value.isoformat()
            if isinstance(value, datetime)
            else list(value)
            if isinstance(value, tuple)
            else value
            for key, value in found.items()
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> PoisonFilter:
        """Read a filter. Raises ValueError, naming the key, for unknown keys and bad values."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"{key}: there is no such filter (there are: {sorted(known)})")
            if value not in (None, ""):
                values[key] = _read(key, value)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class MessageFilter:
    """
    A selection of messages in a queue. Every field narrows it; None matches everything.

    `queue` is a name or a pattern (`tenant-a/*`). `kind` and `reason` have no index. Raises
    ValueError for a reason that does not exist.
    """

    queue: str | None = None
    name: str | None = None
    kind: str | None = None
    instance: str | None = None
    stream: str | None = None
    #: The reason of the last failure: a FailureReason, its number or its name.
    reason: FailureReason | int | str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            # A frozen dataclass is written like this, and only here.
            object.__setattr__(self, "reason", as_reason(self.reason))

    def messages(self, state: str, using: str) -> Any:
        """Return the messages in a state, oldest first, without their payloads."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.queue is not None:
            del given["queue"]
            if is_pattern(self.queue):
                given["queue__name__in"] = matching_queues(self.queue, using=using)
            else:
                given["queue__name"] = self.queue
        if "reason" in given:
            given["failure_reason"] = given.pop("reason")
        if state == State.FAILED:
            # Implied by the FAILED bit; unlike the bit, it has an index.
            given["status__gte"] = int(Status.FAILED)
        rows = Message.objects.using(using).without_bodies().select_related("queue").order_by("pk")
        return rows.in_state(state, clock.now(using)).filter(**given)


#: Reasons of a quarantine; all others are reasons of failures.
_VERDICTS = {FailureReason.POISON_MESSAGE, FailureReason.EXPIRED, FailureReason.OPERATOR}


def _read(key: str, value: Any) -> Any:
    if key in ("since", "until"):
        return value if isinstance(value, datetime) else _moment(key, str(value))
    if key == "reason":
        return as_reason(value)
    if key == "up_to":
        return _number(key, value)
    if key == "queues":
        return _names(key, value)
    return str(value)


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{key}: expected a list of names, got {short_repr(value)}")
    return tuple(str(name) for name in value)


def _number(key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key}: expected a number, got {short_repr(value)}") from None


def _moment(key: str, text: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(
            f"{key}: expected a time such as 2026-01-31T12:00:00+00:00, got {short_repr(text)}"
        )
    return found


def as_reason(value: Any) -> int:
    """Read a FailureReason, its number or its name (case is ignored). Raises ValueError."""
    text = str(int(value)) if isinstance(value, int) else str(value)
    # isascii: Python takes "²" and digits of other scripts for digits too.
    if text.isascii() and text.isdecimal() and len(text) < 4 and int(text) in set(FailureReason):
        return int(text)
    try:
        return int(FailureReason[text.upper().replace("-", "_")])
    except KeyError:
        names = ", ".join(reason.name for reason in FailureReason)
        raise ValueError(f"reason: {short_repr(text)} is none of {names}") from None
