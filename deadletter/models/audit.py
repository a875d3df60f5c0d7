"""The audit trail: acts of people, the messages they touched, and bulk jobs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .fields import MomentField


class Act(models.TextChoices):
    RETRY = "retry", _("retry poison")
    REMOVE = "remove", _("remove poison")
    RETRY_NOW = "retry_now", _("retry a failed message now")
    RELEASE = "release", _("release by name")
    POISON = "poison", _("poison by hand")
    DISCARD = "discard", _("remove a waiting message")
    PURGE = "purge", _("purge old poison")
    PAUSE = "pause", _("pause a queue")
    RESUME = "resume", _("resume a queue")
    EDIT_QUEUE = "edit_queue", _("change a queue")
    EXPORT = "export", _("export poison")
    CANCEL = "cancel", _("cancel an instance")
    IMPORT = "import", _("import messages")
    PAUSE_OUTBOX = "pause_outbox", _("pause a broker or topic")
    RESUME_OUTBOX = "resume_outbox", _("resume a broker or topic")
    PUBLISH_AGAIN = "publish_again", _("publish messages again")
    EDIT_SCHEDULE = "edit_schedule", _("change a schedule")
    PAUSE_SCHEDULE = "pause_schedule", _("pause a schedule")
    RESUME_SCHEDULE = "resume_schedule", _("resume a schedule")
    RUN_SCHEDULE = "run_schedule", _("run a schedule now")
    SYNC_SCHEDULES = "sync_schedules", _("synchronise schedules")
    HOLD_BREAKER = "hold_breaker", _("hold a message name")
    RESET_BREAKER = "reset_breaker", _("reset a circuit breaker")
    ACK_GROUP = "ack_group", _("acknowledge a failure group")
    MUTE_GROUP = "mute_group", _("mute a failure group")
    RESOLVE_GROUP = "resolve_group", _("resolve a failure group")
    REOPEN_GROUP = "reopen_group", _("reopen a failure group")
    ASSIGN_GROUP = "assign_group", _("assign a failure group")
    TICKET_GROUP = "ticket_group", _("link a ticket to a failure group")
    NOTE_GROUP = "note_group", _("write a note on a failure group")
    MERGE_GROUP = "merge_group", _("merge failure groups")
    SPLIT_GROUP = "split_group", _("split a merged failure group off")


class AuditEntry(models.Model):
    """One act of a person. The sweep fills in the last three counts later."""

    #: Large columns, which lists leave out.
    LARGE = ("payload_before", "payload_after")

    at = MomentField(_("at"))
    by = models.CharField(_("by"), max_length=200, blank=True)
    act = models.CharField(_("act"), max_length=16, choices=Act.choices)
    why = models.TextField(_("why"), blank=True)
    #: The selected messages, {"ids": [...]} or the filter; `detail`: target queue, rate, ...
    selection = models.JSONField(_("selection"), default=dict)
    detail = models.JSONField(_("detail"), default=dict)
    #: The stored payload before and after an edit. Cleared after DEADLETTER["AUDIT_PAYLOADS_KEPT"];
    #: large, so read only where they are shown.
    payload_before = models.TextField(_("payload before"), null=True)
    payload_after = models.TextField(_("payload after"), null=True)
    done = models.PositiveIntegerField(_("done"), default=0)
    missing = models.PositiveIntegerField(_("missing"), default=0)
    refused = models.PositiveIntegerField(_("refused"), default=0)
    succeeded = models.PositiveIntegerField(_("succeeded since"), default=0)
    died_same = models.PositiveIntegerField(_("died again of the same"), default=0)
    died_other = models.PositiveIntegerField(_("died of another cause"), default=0)

    class Meta:
        db_table = "deadletter_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        ordering = ("-id",)
        indexes = (
            # Payloads that the sweep clears; only edits are in it.
            models.Index(
                fields=["at", "id"],
                name="deadletter_audit_payloads",
                condition=Q(payload_after__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.get_act_display()} #{self.pk}"

    @property
    def open(self) -> int:
        """The number of retried messages whose outcome is not known yet."""
        if self.act != Act.RETRY:
            return 0
        return max(0, self.done - self.succeeded - self.died_same - self.died_other)


class AuditedMessage(models.Model):
    """A message that an act touched; for a retry, also its outcome."""

    class Outcome(models.IntegerChoices):
        SUCCEEDED = 1, _("succeeded")
        DIED_SAME = 2, _("died again of the same")
        DIED_OTHER = 3, _("died of another cause")
        REMOVED = 4, _("removed before it was handled")

    entry = models.ForeignKey(AuditEntry, on_delete=models.CASCADE, related_name="messages")
    message_id = models.BigIntegerField(_("message id"))
    fingerprint = models.CharField(_("fingerprint"), max_length=16, blank=True)
    #: True for a retry whose outcome is not known yet.
    is_open = models.BooleanField(_("open"), default=False)
    outcome = models.PositiveSmallIntegerField(_("outcome"), choices=Outcome.choices, null=True)

    class Meta:
        db_table = "deadletter_audited_message"
        verbose_name = _("audited message")
        verbose_name_plural = _("audited messages")
        ordering = ("id",)
        indexes = (
            models.Index(fields=["message_id", "id"], name="deadletter_audited"),
            models.Index(fields=["id"], name="deadletter_audit_open", condition=Q(is_open=True)),
            # The acts on the messages of a group.
            models.Index(
                fields=["fingerprint", "entry"],
                name="deadletter_audited_group",
                condition=~Q(fingerprint=""),
            ),
        )

    def __str__(self) -> str:
        return f"#{self.message_id}"


class BulkJob(models.Model):
    """A long act on poison records, done piece by piece in the background."""

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        PAUSED = "paused", _("paused")
        CANCELLED = "cancelled", _("cancelled")
        DONE = "done", _("done")

    entry = models.OneToOneField(AuditEntry, on_delete=models.CASCADE, related_name="job")
    state = models.CharField(
        _("state"), max_length=16, choices=State.choices, default=State.RUNNING
    )
    #: How many records matched when the job was confirmed.
    total = models.PositiveIntegerField(_("total"))
    #: The job continues at this id of a poison record …
    next_id = models.BigIntegerField(_("next id"), default=0)
    #: … and ends at this one: records made after the confirmation are not touched.
    last_id = models.BigIntegerField(_("last id"))
    done = models.PositiveIntegerField(_("done"), default=0)
    refused = models.PositiveIntegerField(_("refused"), default=0)
    created_at = MomentField(_("created at"))
    updated_at = MomentField(_("updated at"))

    class Meta:
        db_table = "deadletter_job"
        verbose_name = _("bulk job")
        verbose_name_plural = _("bulk jobs")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"#{self.pk}"
