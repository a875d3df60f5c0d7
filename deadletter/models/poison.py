"""Poison records: quarantined messages, as they died."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..error_details import (
    Activity,
    ErrorDetails,
    FailedDeserialization,
    MessageType,
    Orchestration,
    Plain,
)
from ..status import FailureReason
from .fields import (
    Damaged,
    FailureReasonField,
    JSONFact,
    JSONTextField,
    MomentField,
    ReadableJSONField,
)
from .message import Kind, Message


class PoisonQuerySet(models.QuerySet["PoisonRecord"]):
    def without_bodies(self) -> PoisonQuerySet:
        """Leave out the columns that may be large or damaged and that no list shows."""
        return self.defer("payload", "headers", "history", "death", "workers", "progress")

    def short_columns(self) -> PoisonQuerySet:
        """Leave out bodies and error texts."""
        return self.without_bodies().defer("last_error", "verdict")

    def halting(self) -> PoisonQuerySet:
        """Narrow to records that halt their stream."""
        return self.filter(halts=True)


class PoisonRecord(models.Model):
    """
    A quarantined message.

    `reason` is why it was quarantined, `last_failure_reason` its last failure. A retry stores the
    message again under `message_id`, so that it keeps its place in its stream.
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.BigIntegerField(_("message id"), unique=True)
    queue = models.CharField(_("queue"), max_length=200)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices, default=Kind.MESSAGE)
    payload = JSONTextField(_("payload"), null=True)
    headers = JSONTextField(_("headers"), null=True)
    stream = models.CharField(_("stream"), max_length=200, null=True)
    key = models.CharField(_("key"), max_length=200, null=True)
    priority = models.SmallIntegerField(_("priority"), default=0)
    status = models.PositiveIntegerField(_("status"), default=1)
    attempts = models.PositiveIntegerField(_("attempts"))
    max_attempts = models.PositiveIntegerField(_("max attempts"), null=True)
    fence = models.BigIntegerField(_("fence"), default=0)
    reason = FailureReasonField(_("reason"))
    verdict = models.TextField(_("verdict"))
    last_failure_reason = FailureReasonField(_("last failure reason"), null=True)
    last_error = models.TextField(_("last error"), null=True)
    history = models.JSONField(_("history"), default=list)
    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    #: What its group has in common: the path of the exception, or else the reason.
    exception = models.CharField(_("exception"), max_length=200, default="", db_default="")
    frame = models.CharField(_("place"), max_length=300, default="", db_default="")
    #: The release of the worker at its last attempt, if that named one.
    release = models.CharField(_("release"), max_length=100, blank=True, default="", db_default="")
    halts = models.BooleanField(_("halts its stream"), default=False)
    poison_count = models.PositiveIntegerField(_("poison count"), default=1)
    source_id = models.BigIntegerField(_("source id"), null=True)
    #: The system that it was imported from.
    origin = models.CharField(_("origin"), max_length=200, null=True)
    #: For a message that died again in a dead queue: where and why it died first. `fingerprint`,
    #: `exception`, `frame` and `poisoned_at` describe that death too; `moved_at` is when it became
    #: a record.
    death = models.JSONField(_("death"), null=True)
    moved_at = MomentField(_("moved at"), null=True)
    instance = models.CharField(_("instance"), max_length=200, null=True)
    execution_id = models.BigIntegerField(_("execution id"), null=True)
    activity_id = models.BigIntegerField(_("activity id"), null=True)
    #: The workers of its attempts, and the last report of its handler: as on the message.
    workers = ReadableJSONField(_("workers"), null=True)
    progress = ReadableJSONField(_("progress"), null=True)
    expires_at = MomentField(_("expires at"), null=True)
    original_created_at = MomentField(_("original created at"))
    poisoned_at = MomentField(_("poisoned at"))
    poisoned_by = models.CharField(_("poisoned by"), max_length=200)

    objects: ClassVar[PoisonQuerySet] = PoisonQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_poison"
        verbose_name = _("poison record")
        verbose_name_plural = _("poison records")
        ordering = ("-id",)
        # Separate permissions for the record, its payload, and acts on it.
        default_permissions = ("view",)
        permissions = (
            ("view_payload", _("Can see payloads")),
            ("retry_poison", _("Can retry poison and hurry messages")),
            ("edit_payload", _("Can edit a payload before the retry")),
            ("remove_poison", _("Can remove poison and waiting messages")),
        )
        indexes = (
            models.Index(fields=["poisoned_at", "id"], name="deadletter_poison_time"),
            # With the id, in the order of the lists: otherwise the planner may scan the index on
            # time, past all other records, to a group that ended long ago.
            models.Index(fields=["queue", "poisoned_at", "id"], name="deadletter_poison_queue"),
            models.Index(
                fields=["fingerprint", "poisoned_at", "id"], name="deadletter_poison_group"
            ),
            models.Index(fields=["name", "poisoned_at", "id"], name="deadletter_poison_name"),
            models.Index(fields=["exception", "poisoned_at", "id"], name="deadletter_poison_cause"),
            models.Index(
                fields=["stream", "message_id"],
                name="deadletter_poison_stream",
                condition=~Q(stream=None),
            ),
            models.Index(
                fields=["instance", "id"],
                name="deadletter_poison_instance",
                condition=~Q(instance=None),
            ),
            # Imported records are not imported again.
            models.Index(
                fields=["queue", "origin", "source_id"],
                name="deadletter_poison_origin",
                condition=~Q(origin=None),
            ),
            # Records from dead queues, by the id that the message had before it was moved.
            models.Index(
                fields=["source_id"],
                name="deadletter_poison_moved",
                condition=Q(source_id__isnull=False, origin=None),
            ),
            # The same for messages that were imported before they were moved.
            models.Index(
                JSONFact("death", key="origin"),
                JSONFact("death", key="source_id"),
                name="deadletter_poison_dead_origin",
                condition=Q(death__isnull=False),
            ),
            # How many streams a group halts.
            models.Index(
                fields=["fingerprint"],
                name="deadletter_poison_halting",
                condition=Q(halts=True),
            ),
            # Halted streams: read by every claim that finds a stream.
            models.Index(
                fields=["queue", "stream", "message_id"],
                name="deadletter_halted",
                condition=Q(halts=True),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} #{self.message_id}"

    @property
    def is_unknown(self) -> bool:
        """True if no worker had its name: `attempts` then counts deferrals, not executions."""
        return bool(self.reason == FailureReason.UNREGISTERED)

    @property
    def error_details(self) -> ErrorDetails:
        """The error as a value, with the message itself."""
        return ErrorDetails.Poison(
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            last_error=self.last_error,
            message_type=self._message_type(),
            instance=self.instance,
            execution_id=self.execution_id,
            message_id=self.message_id,
            message=self._message(),
            reason=FailureReason.read(self.reason),
            verdict=self.verdict,
        )

    def _message(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("queue", "name", "kind", "stream", "key")}
        for name in ("payload", "headers"):
            value = getattr(self, name)
            found[name] = value.text if isinstance(value, Damaged) else value
        return {"id": self.message_id, **found}

    def _message_type(self) -> MessageType:
        if isinstance(self.payload, Damaged):
            return FailedDeserialization(self.payload.problem)
        if self.kind == Kind.ACTIVITY:
            return Activity(self.name, self.activity_id)
        if self.kind == Kind.ORCHESTRATION:
            return Orchestration(self.instance or "", self.execution_id)
        return Plain(self.name)


def is_moved(row: Message | PoisonRecord) -> bool:
    """Return whether a message died in another queue and was moved to a dead queue."""
    return row.source_id is not None and row.origin is None
