"""Model fields: durations as text, and times and JSON that cannot break a query."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..durations import EARLIEST, LATEST, as_text, as_timedelta
from ..exceptions import Undecodable
from ..failure_policy import as_json
from ..payload import decode
from ..status import FailureReason

if TYPE_CHECKING:  # the classes are generic to the type checker only
    _DurationField = models.DurationField[Any, Any]
    _TextField = models.TextField[Any, Any]
    _DateTimeField = models.DateTimeField[Any, Any]
    _JSONField = models.JSONField[Any, Any]
    _PositiveSmallIntegerField = models.PositiveSmallIntegerField[Any, Any]
else:
    _DurationField, _TextField = models.DurationField, models.TextField
    _DateTimeField, _JSONField = models.DateTimeField, models.JSONField
    _PositiveSmallIntegerField = models.PositiveSmallIntegerField


class SecondsField(_DurationField):
    """A duration that may be given as seconds, timedelta or text; forms show and take "1h30m"."""

    def to_python(self, value: Any) -> timedelta | None:
        if value is None:
            return None
        try:
            return as_timedelta(value, field=str(self.verbose_name))
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from None

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(self.to_python(value))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        # QuerySet.update skips the check, and PostgreSQL would accept "-30".
        value = value if prepared else self.get_prep_value(value)
        return super().get_db_prep_value(value, connection, prepared)

    def formfield(self, **kwargs: Any) -> Any:
        return super().formfield(**{"form_class": DurationFormField, **kwargs})


class DurationFormField(forms.Field):
    """A form field for a duration, as the module `durations` writes and reads it."""

    default_error_messages = {
        "invalid": _("Enter a duration from 0 to 100 years: 30s, 5m, 1h30m, 2d, or seconds."),
    }

    def prepare_value(self, value: Any) -> Any:
        return as_text(value) if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> timedelta | None:
        if value in self.empty_values:
            return None
        try:
            return as_timedelta(value, field=str(self.label))
        except ValueError:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None


class ReadableJSONField(_JSONField):
    """
    JSON that can always be read: a value that Python cannot decode is read as the default.

    Databases hold numbers and depths that Python refuses. One such row would break every query
    that reads it, also the claim.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return self.get_default()

    def deconstruct(self) -> Any:
        # Migrations see the field by which it is stored.
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class ReasonPoliciesField(ReadableJSONField):
    """Failure policies by reason, checked key by key; see failure_policy.py."""

    def clean(self, value: Any, model_instance: Any) -> Any:
        """Return the stored form: names of reasons, durations in seconds or as text."""
        try:
            value = as_json(value)
        except ValueError as error:
            # Not "invalid": forms replace the text of that code.
            raise ValidationError(str(error), code="reason_policies") from None
        return super().clean(value, model_instance)


class FailureReasonField(_PositiveSmallIntegerField):
    """
    The number of a FailureReason; its choices are the members of the enumeration.

    A new reason needs no migration: choices have no effect on the column, so migrations always see
    the choices of the first one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "choices": FailureReason.choices})

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        kwargs["choices"] = _REASONS_IN_MIGRATIONS
        return name, "django.db.models.PositiveSmallIntegerField", args, kwargs


#: The choices as migration 0001 has them. New reasons are not added here.
_REASONS_IN_MIGRATIONS = [
    (1, "transport unavailable"),
    (2, "handler exception"),
    (3, "validation failure"),
    (4, "timeout exceeded"),
    (5, "serialization error"),
    (6, "dependency failure"),
    (7, "poison message"),
    (8, "expired"),
    (9, "unregistered"),
    (10, "worker lost"),
    (11, "operator"),
    (99, "unknown"),
]


class MomentField(_DateTimeField):
    """
    A time that can always be read.

    PostgreSQL can hold 'infinity' and years that Python does not have, SQLite any text. One such
    row would break every list that contains it. These values are read as the nearest readable time;
    text that is no time is read as LATEST.

    A query that selects such a column by its name and sorts by it sorts by the selected expression,
    which no index has: `values_list(F("poisoned_at"))` selects it under another name.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Select a readable expression; conditions and orders use the column itself."""
        vendor = compiler.connection.vendor
        if vendor == "postgresql":
            return _readable(_READABLE_ON_POSTGRESQL, sql, params)
        if vendor == "sqlite":
            return _readable(_READABLE_ON_SQLITE, sql, params)
        return sql, params

    def deconstruct(self) -> Any:
        # Migrations see the field by which it is stored.
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


def _readable(template: str, sql: str, params: Any) -> tuple[str, Any]:
    return template.replace("{sql}", sql), [*params] * template.count("{sql}")


_READABLE_ON_POSTGRESQL = (
    "CASE WHEN {sql} IS NULL THEN NULL ELSE LEAST(GREATEST({sql}, "
    f"'{EARLIEST.isoformat()}'::timestamptz), '{LATEST.isoformat()}'::timestamptz) END"
)
#: Adding 0 days leaves a valid day unchanged and turns an invalid one into another day. SQLite also
#: accepts hour 24, no space or two before the hour, and a small z; Python does not.
_READABLE_ON_SQLITE = (
    "CASE WHEN {sql} IS NULL OR (date(substr({sql}, 1, 10), '+0 days') = substr({sql}, 1, 10) "
    "AND julianday({sql}) IS NOT NULL AND {sql} BETWEEN '0001-01-03' AND '9999-12-29' "
    "AND (substr({sql}, 11) = '' OR substr({sql}, 11, 3) GLOB '[ T][01][0-9]' "
    "OR substr({sql}, 11, 3) GLOB '[ T]2[0-3]') AND {sql} NOT GLOB '*z') "
    "THEN {sql} ELSE '9999-12-29 00:00:00' END"
)


class Damaged:
    """A stored JSON value that cannot be decoded; the rest of its row can still be read."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        self.problem = problem

    def __repr__(self) -> str:
        return f"<Damaged {self.problem}>"


class JSONTextField(_TextField):
    """
    JSON stored as the text that `payload.accept` returned.

    The bytes are the same on both databases, the server does not parse them, and a damaged row
    affects itself only: a JSONField would raise for the whole query (docs/decisions/0006).
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


class JSONFact(models.Func):
    """
    The value of a key of a stored JSON object, spelled the same in an index and in a query.

    On SQLite the spelling of Django's own lookup differs from process to process, and then SQLite
    does not use the index.
    """

    arity = 1
    output_field = models.TextField()

    def __init__(self, expression: Any, *, key: str) -> None:
        super().__init__(expression, key=key)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(
            compiler, connection, template="JSON_EXTRACT(%(expressions)s, '$.%(key)s')", **extra
        )

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="%(expressions)s ->> '%(key)s'", **extra)
