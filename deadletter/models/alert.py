"""Alerts and the state of their decisions. Written only while alerts are decided."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .fields import MomentField


class Alert(models.Model):
    """
    A condition that a rule found, from its beginning to its end.

    `key` identifies the condition; a unique constraint allows one open alert per key, however many
    processes decide. `closed_at` is when the condition counted as ended; `settled_at` is when the
    last notice about it was made.
    """

    class Rule(models.TextChoices):
        NEW_GROUP = "new_group", _("a new cause of death")
        REGRESSED_GROUP = "regressed_group", _("a cause came back after it was resolved")
        POISON_RATE = "poison_rate", _("many deaths")
        POISON_DEPTH = "poison_depth", _("many dead letters")
        OLDEST_AGE = "oldest_age", _("a message waits too long")
        HALTED_STREAM = "halted_stream", _("streams stand still")
        WORKER_LOST = "worker_lost", _("a worker is lost")
        BREAKER_OPENED = "breaker_opened", _("a circuit breaker opened")
        UNSERVED_QUEUE = "unserved_queue", _("a queue that no worker serves")
        STUCK_INSTANCE = "stuck_instance", _("instances are stuck")
        OUTBOX_AGE = "outbox_age", _("a message of the outbox waits too long")
        BROKER_UNAVAILABLE = "broker_unavailable", _("a broker accepts nothing")
        SCHEDULE_FAILED = "schedule_failed", _("a schedule cannot fire")
        SCHEDULE_OVERDUE = "schedule_overdue", _("schedules that no worker fires")

    key = models.CharField(_("key"), max_length=250)
    rule = models.CharField(_("rule"), max_length=32, choices=Rule.choices)
    #: The subject: a fingerprint, a queue, a worker or a message name; "" for all queues.
    subject = models.CharField(_("subject"), max_length=200, blank=True)
    #: Values for the text of the notice: {"queue", "name", "exception", "above", …}.
    detail = models.JSONField(_("detail"), default=dict)
    #: The beginning of the error of one message, as a sample.
    error = models.TextField(_("sample error"), blank=True)
    count = models.PositiveBigIntegerField(_("count"), default=0)
    #: Grows when a new notice is due.
    mark = models.FloatField(_("mark"), default=0)
    since = MomentField(_("since"))
    opened_at = MomentField(_("opened at"))
    #: When the condition was last true.
    last_at = MomentField(_("last seen at"))
    closed_at = MomentField(_("closed at"), null=True)
    #: Time and mark of the last notice.
    told_at = MomentField(_("told at"), null=True)
    told_mark = models.FloatField(_("told mark"), default=0)
    settled_at = MomentField(_("settled at"), null=True)

    class Meta:
        db_table = "deadletter_alert"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ("-id",)
        default_permissions = ("view",)
        indexes = (
            # Earlier alerts of a condition, also long after they ended.
            models.Index(fields=["key", "closed_at"], name="deadletter_alert_key"),
            # Alerts that may need a notice.
            models.Index(
                fields=["id"], name="deadletter_alert_unsettled", condition=Q(settled_at=None)
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["key"], name="deadletter_alert_open", condition=Q(closed_at=None)
            ),
        )

    def __str__(self) -> str:
        return self.key


class AlertState(models.Model):
    """One row, locked while alerts are decided: one process decides at a time."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    #: When alerts were first decided: groups older than this are not new.
    started_at = MomentField(_("started at"))
    decided_at = MomentField(_("decided at"), null=True)
    #: The fingerprint up to which groups were examined; "" if the last pass reached the end.
    cursor = models.CharField(_("cursor"), max_length=16, blank=True)
    #: Time of the last notice of each rule: {"new_group": seconds, "new_group ended": seconds}.
    spoken = models.JSONField(_("spoken"), default=dict)

    class Meta:
        db_table = "deadletter_alert_state"
        verbose_name = _("state of alerts")
        verbose_name_plural = _("state of alerts")
        default_permissions = ()

    def __str__(self) -> str:
        return f"decided at {self.decided_at}"
