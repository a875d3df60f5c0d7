"""Results: what became of tasks, and of handlers that keep their results."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .fields import JSONTextField, MomentField, ReadableJSONField
from .message import Kind


class ResultOutcome(models.TextChoices):
    """How a message ended. Waiting, running and dead messages have rows elsewhere."""

    SUCCESSFUL = "successful", _("successful")
    #: It died, and its poison record was removed or discarded.
    REMOVED = "removed", pgettext_lazy("result", "removed")
    #: A person or a program removed it before it ran.
    CANCELLED = "cancelled", pgettext_lazy("result", "cancelled")


class ResultQuerySet(models.QuerySet["Result"]):
    def latest_of(self, name: str) -> ResultQuerySet:
        """
        Narrow to one name, what ended last first.

        A range, sorted by name first: for a single name PostgreSQL may read the primary key
        backwards instead, through the results of all other names.
        """
        rows = self.filter(name__range=(name, name))
        return rows.order_by("-name", "-finished_at", "-pk")

    def without_bodies(self) -> ResultQuerySet:
        """Leave out the columns that may be large or damaged and that no list shows."""
        return self.defer("payload", "headers", "history", "value", "workers", "progress")


class Result(models.Model):
    """
    The end of a message, written by the transaction that deletes its row.

    A message that is still there has no result: its state is that of its own row, or of its poison
    record.
    """

    message_id = models.BigIntegerField(_("message id"), primary_key=True)
    queue = models.CharField(_("queue"), max_length=200)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    outcome = models.CharField(_("outcome"), max_length=16, choices=ResultOutcome.choices)
    payload = JSONTextField(_("payload"), null=True)
    headers = JSONTextField(_("headers"), null=True)
    priority = models.SmallIntegerField(_("priority"), default=0)
    #: What the handler returned.
    value = JSONTextField(_("return value"), null=True)
    #: Failed attempts, as on the message; None: there were none.
    history = ReadableJSONField(_("history"), null=True)
    #: The worker of each attempt, the last one included.
    workers = ReadableJSONField(_("workers"), null=True)
    progress = ReadableJSONField(_("progress"), null=True)
    created_at = MomentField(_("created at"))
    #: When the last attempt began; None: there was none.
    attempted_at = MomentField(_("attempted at"), null=True)
    finished_at = MomentField(_("finished at"))
    #: When the row may be deleted; None: never.
    expires_at = MomentField(_("expires at"), null=True)

    objects = ResultQuerySet.as_manager()

    class Meta:
        db_table = "deadletter_task_result"
        verbose_name = _("result")
        verbose_name_plural = _("results")
        ordering = ("-message_id",)
        default_permissions = ("view",)
        indexes = (
            models.Index(
                fields=["expires_at"],
                name="deadletter_result_expiry",
                condition=Q(expires_at__isnull=False),
            ),
            # The list of one task, the latest first. Without the id: a planner that believes the
            # table to be empty would look for an id with any index that has it.
            models.Index(fields=["name", "finished_at"], name="deadletter_result_name"),
        )

    def __str__(self) -> str:
        return f"{self.name} #{self.message_id}"
