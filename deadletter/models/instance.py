"""Instances, long-running processes that advance by messages, and their log."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..error_details import ErrorDetails
from .fields import JSONTextField, MomentField

#: The stream of an instance is this and its id; the column has 200 characters.
STREAM = "instance:"
LONGEST_ID = 200 - len(STREAM)


def stream_of(instance: str) -> str:
    return STREAM + instance


class InstanceStatus(models.TextChoices):
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")


class InstanceQuerySet(models.QuerySet["Instance"]):
    def without_bodies(self) -> InstanceQuerySet:
        """Leave out the columns that may be large and that no list shows."""
        return self.defer("input", "state", "output", "inbox", "history")

    def short_columns(self) -> InstanceQuerySet:
        """Leave out bodies, the error, and what the instance waits for."""
        return self.without_bodies().defer("error", "pending")

    def stuck(self) -> InstanceQuerySet:
        """Narrow to running instances that wait for a lost message, as the last sweep found."""
        return self.filter(stuck_since__isnull=False, status=InstanceStatus.RUNNING)


class Instance(models.Model):
    """
    A long-running process. The application chooses `id`.

    An id may run again after its end: the row stays the same, `execution_id` grows.
    """

    id = models.CharField(_("id"), primary_key=True, max_length=200)
    name = models.CharField(_("name"), max_length=200)
    #: None until the first turn, by a worker that has the flow.
    version = models.CharField(_("version"), max_length=64, null=True)
    execution_id = models.BigIntegerField(_("execution id"), default=1)
    #: The execution that `start` began; later ones continued it.
    first_execution_id = models.BigIntegerField(_("first execution id"), default=1)
    queue = models.CharField(_("queue"), max_length=200)
    status = models.CharField(
        _("status"), max_length=16, choices=InstanceStatus.choices, default=InstanceStatus.RUNNING
    )
    input = JSONTextField(_("input"), null=True)
    state = JSONTextField(_("state"), null=True)
    output = JSONTextField(_("output"), null=True)
    error = JSONTextField(_("error"), null=True)
    #: The poisoned message that failed it, its own or a child's; None: the flow decided to fail.
    failed_by = models.BigIntegerField(_("failed by"), null=True)
    parent = models.CharField(_("parent"), max_length=200, null=True)
    parent_execution_id = models.BigIntegerField(_("parent's execution id"), null=True)
    parent_activity_id = models.BigIntegerField(_("parent's activity id"), null=True)
    #: What the instance waits for: {activity id: {"kind": activity | child | timer, "name": …}}.
    pending = models.JSONField(_("pending"), default=dict)
    next_activity_id = models.BigIntegerField(_("next activity id"), default=1)
    #: True once the flow has handled Started of this execution; `inbox`: events raised before.
    is_begun = models.BooleanField(_("begun"), default=False)
    inbox = JSONTextField(_("inbox"), null=True)
    #: Results of earlier executions and repaired errors, the latest last.
    history = models.JSONField(_("history"), default=list)
    #: Grows with every change: a turn that read an older revision is taken again.
    revision = models.BigIntegerField(_("revision"), default=0)
    created_at = MomentField(_("created at"))
    updated_at = MomentField(_("updated at"))
    ended_at = MomentField(_("ended at"), null=True)
    #: Set by the sweep while the instance runs and nothing can deliver what it waits for.
    stuck_since = MomentField(_("stuck since"), null=True)

    objects: ClassVar[InstanceQuerySet] = InstanceQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_instance"
        verbose_name = _("instance")
        verbose_name_plural = _("instances")
        ordering = ("-updated_at", "id")
        default_permissions = ("view",)
        permissions = (("cancel_instance", _("Can cancel instances")),)
        indexes = (
            models.Index(fields=["status", "updated_at", "id"], name="deadletter_instance_status"),
            models.Index(fields=["updated_at", "id"], name="deadletter_instance_time"),
            models.Index(fields=["name", "updated_at", "id"], name="deadletter_instance_name"),
            models.Index(
                fields=["parent", "id"],
                name="deadletter_instance_parent",
                condition=Q(parent__isnull=False),
            ),
            # Ended instances for retention, the oldest first.
            models.Index(
                fields=["ended_at", "id"],
                name="deadletter_instance_ended",
                condition=Q(ended_at__isnull=False),
            ),
            models.Index(
                fields=["stuck_since", "id"],
                name="deadletter_instance_stuck",
                condition=Q(stuck_since__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.id}"

    @property
    def stream(self) -> str:
        return stream_of(self.id)

    @property
    def is_running(self) -> bool:
        return self.status == InstanceStatus.RUNNING

    @property
    def is_stuck(self) -> bool:
        """True if it runs and waits for a lost message, as the last sweep found."""
        return self.is_running and self.stuck_since is not None

    @property
    def error_details(self) -> ErrorDetails | None:
        """The error of a failed instance; a damaged one says what cannot be read."""
        if self.error is None:
            return None
        try:
            return ErrorDetails.from_dict(self.error)
        except ValueError as problem:
            return ErrorDetails.Application(problem)


class InstanceLogKind(models.TextChoices):
    STARTED = "started", _("started")
    CALLED = "called", _("called")
    ACTIVITY_COMPLETED = "activity_completed", _("activity completed")
    ACTIVITY_FAILED = "activity_failed", _("activity failed")
    CHILD_STARTED = "child_started", _("child started")
    CHILD_COMPLETED = "child_completed", _("child completed")
    CHILD_FAILED = "child_failed", _("child failed")
    TIMER_SET = "timer_set", _("timer set")
    TIMER_FIRED = "timer_fired", _("timer fired")
    RAISED = "raised", _("raised")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CONTINUED = "continued", _("continued")
    REOPENED = "reopened", _("reopened")
    CANCELLED = "cancelled", _("cancelled")
    IGNORED = "ignored", _("ignored")


class InstanceEvent(models.Model):
    """One line of the log of an instance. `data` is bounded, except for events it missed."""

    id = models.BigAutoField(primary_key=True)
    instance = models.CharField(_("instance"), max_length=200)
    execution_id = models.BigIntegerField(_("execution id"))
    at = MomentField(_("at"))
    event = models.CharField(_("event"), max_length=24, choices=InstanceLogKind.choices)
    name = models.CharField(_("name"), max_length=200, default="")
    activity_id = models.BigIntegerField(_("activity id"), null=True)
    message_id = models.BigIntegerField(_("message id"), null=True)
    data = JSONTextField(_("data"), null=True)

    class Meta:
        db_table = "deadletter_instance_event"
        verbose_name = _("event of an instance")
        verbose_name_plural = _("events of instances")
        ordering = ("id",)
        default_permissions = ("view",)
        indexes = (models.Index(fields=["instance", "id"], name="deadletter_instance_log"),)

    def __str__(self) -> str:
        return f"{self.instance} {self.event}"
