"""The inbox: which messages of other systems were handled already."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import MomentField


class InboxMessage(models.Model):
    """A message that a consumer has handled, written in the transaction that handled it."""

    consumer = models.CharField(_("consumer"), max_length=200)
    message_id = models.CharField(_("message id"), max_length=200)
    handled_at = MomentField(_("handled at"))

    class Meta:
        db_table = "deadletter_inbox"
        verbose_name = _("inbox message")
        verbose_name_plural = _("inbox")
        ordering = ("-id",)
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=["consumer", "message_id"], name="deadletter_inbox_handled"
            ),
        )
        indexes = (models.Index(fields=["handled_at"], name="deadletter_inbox_age"),)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.message_id}"
