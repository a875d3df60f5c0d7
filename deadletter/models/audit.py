"""Who did what to which messages, why, and what came of it?"""

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


class AuditEntry(models.Model):
    """One act of a person. The three last counts are filled in later, by the sweep."""

    #: Columns that lists leave out.
    LARGE = ("payload_before", "payload_after")

    at = MomentField(_("at"))
    by = models.CharField(_("by"), max_length=200, blank=True)
    act = models.CharField(_("act"), max_length=16, choices=Act.choices)
    why = models.TextField(_("why"), blank=True)
    #: What was asked for: {"ids": [...]} or the filter; and where to, how fast, ...
    selection = models.JSONField(_("selection"), default=dict)
    detail = models.JSONField(_("detail"), default=dict)
    #: An edit before a retry: the payload as it was and as it became, as stored. Cleared after
    #: DEADLETTER["AUDIT_PAYLOADS_KEPT"]; large, so read only where they are shown.
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
            # What the sweep clears; only edits enter it.
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
        """Retried messages of which nothing has been heard yet."""
        if self.act != Act.RETRY:
            return 0
        return max(0, self.done - self.succeeded - self.died_same - self.died_other)


class AuditedMessage(models.Model):
    """Which message an act touched; for a retry, also what became of it."""

    class Outcome(models.IntegerChoices):
        SUCCEEDED = 1, _("succeeded")
        DIED_SAME = 2, _("died again of the same")
        DIED_OTHER = 3, _("died of another cause")
        REMOVED = 4, _("removed before it was handled")

    entry = models.ForeignKey(AuditEntry, on_delete=models.CASCADE, related_name="messages")
    message_id = models.BigIntegerField(_("message id"))
    fingerprint = models.CharField(_("fingerprint"), max_length=16, blank=True)
    #: A retry whose end is not known yet.
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
        )

    def __str__(self) -> str:
        return f"#{self.message_id}"


class BulkJob(models.Model):
    """A long act on poison, done piece by piece in the background."""

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        PAUSED = "paused", _("paused")
        CANCELLED = "cancelled", _("cancelled")
        DONE = "done", _("done")

    entry = models.OneToOneField(AuditEntry, on_delete=models.CASCADE, related_name="job")
    state = models.CharField(
        _("state"), max_length=16, choices=State.choices, default=State.RUNNING
    )
    #: How many matched when it was confirmed.
    total = models.PositiveIntegerField(_("total"))
    #: Poison ids from here on are still to be looked at …
    next_id = models.BigIntegerField(_("next id"), default=0)
    #: … up to here: what died after the confirmation is not touched.
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
