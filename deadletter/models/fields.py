"""Columns with rules of their own: durations given in seconds, JSON that cannot break a query."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models

from ..durations import as_timedelta
from ..exceptions import Undecodable
from ..payload import decode

if TYPE_CHECKING:  # the classes are generic to the type checker only
    _DurationField = models.DurationField[Any, Any]
    _TextField = models.TextField[Any, Any]
else:
    _DurationField, _TextField = models.DurationField, models.TextField


class SecondsField(_DurationField):
    """A duration that may also be given as a number of seconds."""

    def to_python(self, value: Any) -> timedelta | None:
        if value is None or isinstance(value, str):
            return super().to_python(value)  # type: ignore[no-any-return]
        try:
            return as_timedelta(value, field=str(self.verbose_name))
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from None

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(self.to_python(value))


class Damaged:
    """Stands for a stored JSON value that cannot be decoded, so that the rest of its row can be."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        self.problem = problem

    def __repr__(self) -> str:
        return f"<Damaged {self.problem}>"


class JSONTextField(_TextField):
    """
    JSON kept as the text that passed the door.

    The same bytes on both databases, no work for the server, and one bad row stays one bad row: a
    JSONField would raise for the whole query (docs/decisions/0006).
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        return self.to_python(value) if isinstance(value, str) else value

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return decode(value)
        except Undecodable as error:
            return Damaged(value, str(error))

    def get_prep_value(self, value: Any) -> str | None:
        if isinstance(value, Damaged):
            return value.text
        return None if value is None and self.null else json.dumps(value, ensure_ascii=False)
