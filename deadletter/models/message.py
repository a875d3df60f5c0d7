"""Messages: fields, indexes and named QuerySets. Transitions are in `lifecycle`."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Left, Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .. import clock
from ..status import Status
from .fields import FailureReasonField, JSONFact, JSONTextField, MomentField, ReadableJSONField
from .queue import Queue

#: The range of priorities; the lowest number is claimed first.
FIRST_PRIORITY, LAST_PRIORITY = -100, 100
#: Characters of an error in a list.
ERROR_START = 200


class Kind(models.TextChoices):
    MESSAGE = "message", _("message")
    ORCHESTRATION = "orchestration", _("orchestration")
    ACTIVITY = "activity", _("activity")
    TASK = "task", _("task")
    #: A message of the outbox that its broker refused; it is never in a queue.
    EVENT = "event", _("event")


class State(models.TextChoices):
    """What a person calls the situation of a message; computed, never stored."""

    PENDING = "pending", _("pending")
    SCHEDULED = "scheduled", _("scheduled")
    FAILED = "failed", _("failed")
    # Users are "active" as well, and another language may need another word.
    ACTIVE = "active", pgettext_lazy("message", "active")
    BLOCKED = "blocked", _("blocked")
    DEAD = "dead", _("dead")


class MessageQuerySet(models.QuerySet["Message"]):
    def in_state(self, state: str, now: datetime | None = None) -> MessageQuerySet:
        """Narrow to one of the states that pages and commands show."""
        now = now or clock.now(self.db)
        waiting = Q(available_at__gt=now, lease_token=None)
        if state == State.PENDING:
            return self.filter(available_at__lte=now)
        if state == State.ACTIVE:
            return self.filter(available_at__gt=now, lease_token__isnull=False)
        if state == State.BLOCKED:
            return self.filter(available_at=None)
        marked = self.alias(failed_bit=F("status").bitand(int(Status.FAILED)))
        if state == State.FAILED:
            return marked.filter(waiting, failed_bit__gt=0)
        if state == State.SCHEDULED:
            return marked.filter(waiting, failed_bit=0)
        raise ValueError(f"{state!r} is not a state of a message")

    def without_bodies(self, *, keep_death: bool = False) -> MessageQuerySet:
        """
        Leave out the columns that may be large or damaged and that no list shows.

        `keep_death`: read `death`, which says where and why a message in a dead queue died.
        """
        rows = self.defer("payload", "headers", "history", "error", "workers", "progress")
        return rows if keep_death else rows.defer("death")

    def with_error_start(self) -> MessageQuerySet:
        """Add `error_start`: as much of the error as a list shows."""
        return self.annotate(error_start=Left("error", ERROR_START))


class Message(models.Model):
    """
    One unit of work in a queue.

    `available_at` is the time from which the message may be claimed: in the past it is due, in the
    future it waits or is leased until then, NULL is parked behind its stream. `id` is the order.
    """

    id = models.BigAutoField(primary_key=True)
    # No constraint in the database: every insert would lock the row of the queue.
    queue = models.ForeignKey(
        Queue,
        verbose_name=_("queue"),
        on_delete=models.PROTECT,
        db_constraint=False,
        db_index=False,
        related_name="messages",
    )
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(
        _("kind"),
        max_length=16,
        choices=Kind.choices,
        default=Kind.MESSAGE,
        db_default=Kind.MESSAGE,
    )
    payload = JSONTextField(_("payload"), null=True, blank=True)
    headers = JSONTextField(_("headers"), null=True, blank=True)
    stream = models.CharField(_("stream"), max_length=200, null=True, blank=True)
    key = models.CharField(_("key"), max_length=200, null=True, blank=True)
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    status = models.PositiveIntegerField(_("status"), default=1, db_default=1)
    attempts = models.PositiveIntegerField(_("attempts"), default=0, db_default=0)
    fence = models.BigIntegerField(_("fence"), default=0, db_default=0)
    available_at = MomentField(_("available at"), null=True, blank=True)
    lease_token = models.CharField(_("lease token"), max_length=32, null=True, blank=True)
    worker = models.CharField(_("worker"), max_length=200, null=True, blank=True)
    released_at = MomentField(_("released at"), null=True, blank=True)
    expires_at = MomentField(_("expires at"), null=True, blank=True)
    failure_reason = FailureReasonField(_("failure reason"), null=True, blank=True)
    error = models.TextField(_("error"), null=True, blank=True)
    history = models.JSONField(_("history"), default=list, db_default=[], blank=True)
    #: Failures by reason since the last retry by a person or the last stage: {"2": 3}.
    reason_counts = ReadableJSONField(_("failures by reason"), null=True, blank=True)
    #: Deferrals since then because its name had no handler. They are not attempts.
    unregistered_count = models.IntegerField(_("unregistered count"), null=True, blank=True)
    #: Since when `unregistered_count` has reached the limit of the queue.
    unregistered_at = MomentField(_("unregistered at"), null=True, blank=True)
    poison_count = models.PositiveIntegerField(_("poison count"), default=0, db_default=0)
    #: Its earlier id: in the queue where it died, or in `origin`.
    source_id = models.BigIntegerField(_("source id"), null=True, blank=True)
    #: The system that it was imported from.
    origin = models.CharField(_("origin"), max_length=200, null=True, blank=True)
    #: In a dead queue: where and why it died. Read it with lifecycle/dead_queues.py.
    death = models.JSONField(_("death"), null=True, blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=16, null=True, blank=True)
    died_at = MomentField(_("died at"), null=True, blank=True)
    instance = models.CharField(_("instance"), max_length=200, null=True, blank=True)
    execution_id = models.BigIntegerField(_("execution id"), null=True, blank=True)
    activity_id = models.BigIntegerField(_("activity id"), null=True, blank=True)
    #: The workers of its failed and lost attempts, one entry per attempt, the latest WORKERS_LIMIT.
    workers = ReadableJSONField(_("workers"), null=True, blank=True)
    #: The last report of its handler: {"done", "total", "note", "at"}.
    progress = ReadableJSONField(_("progress"), null=True, blank=True)
    created_at = MomentField(_("created at"), db_default=Now())

    objects: ClassVar[MessageQuerySet] = MessageQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_message"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ("id",)
        default_permissions = ("view",)
        indexes = (
            # The only index besides the primary key that has every message.
            models.Index(
                fields=["queue", "priority", "available_at", "id"],
                name="deadletter_claim",
                condition=Q(available_at__isnull=False),
            ),
            models.Index(
                fields=["queue", "stream", "id"],
                name="deadletter_stream",
                condition=Q(stream__isnull=False),
            ),
            models.Index(
                fields=["queue", "stream"],
                name="deadletter_leased_stream",
                condition=Q(stream__isnull=False, lease_token__isnull=False),
            ),
            models.Index(
                fields=["queue", "stream", "id"],
                name="deadletter_parked",
                condition=Q(available_at=None),
            ),
            models.Index(
                fields=["queue", "stream", "id"],
                name="deadletter_released",
                condition=Q(stream__isnull=False, released_at__isnull=False),
            ),
            # Failed messages only: the list of an operator, however many others wait.
            models.Index(
                fields=["id"],
                name="deadletter_failed",
                condition=Q(status__gte=int(Status.FAILED)),
            ),
            models.Index(
                fields=["expires_at", "id"],
                name="deadletter_expiry",
                condition=Q(expires_at__isnull=False),
            ),
            models.Index(
                fields=["instance", "id"],
                name="deadletter_of_instance",
                condition=Q(instance__isnull=False),
            ),
            # Groups of messages in dead queues.
            models.Index(
                fields=["fingerprint", "died_at", "id"],
                name="deadletter_dead_group",
                condition=Q(fingerprint__isnull=False),
            ),
            # Latest messages in a dead queue, and their number.
            models.Index(
                fields=["queue", "died_at", "id"],
                name="deadletter_dead_time",
                condition=Q(died_at__isnull=False),
            ),
            # Imported messages in a dead queue are not imported again.
            models.Index(
                JSONFact("death", key="origin"),
                JSONFact("death", key="source_id"),
                name="deadletter_dead_origin",
                condition=Q(death__isnull=False),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["queue", "key"],
                name="deadletter_message_key",
                condition=Q(key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["queue", "source_id"],
                name="deadletter_message_moved",
                condition=Q(source_id__isnull=False, origin=None),
            ),
            models.UniqueConstraint(
                fields=["queue", "origin", "source_id"],
                name="deadletter_message_origin",
                condition=Q(origin__isnull=False),
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=FIRST_PRIORITY, priority__lte=LAST_PRIORITY),
                name="deadletter_message_priority",
            ),
            models.CheckConstraint(
                condition=Q(attempts__gte=0), name="deadletter_message_attempts"
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} #{self.id}"

    @property
    def was_tried(self) -> bool:
        """True if an attempt failed or was abandoned."""
        # An abandoned message has no FAILED bit, and no reason without an error text; a message
        # whose name had no handler has no attempts.
        is_marked = bool(self.status & Status.FAILED)
        return is_marked or self.attempts > 0 or self.failure_reason is not None

    def state(self, now: datetime) -> str:
        """Return the state that pages and commands show."""
        if self.available_at is None:
            return State.BLOCKED
        if self.available_at <= now:
            return State.PENDING
        if self.lease_token is not None:
            return State.ACTIVE
        return State.FAILED if self.status & Status.FAILED else State.SCHEDULED
