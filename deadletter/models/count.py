"""Counters of events per queue, name and minute, later per hour and per day."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .fields import MomentField

#: The `reason` of counters that have none: all but failures.
NO_REASON = -1


class Span(models.IntegerChoices):
    """The time that a row covers, in seconds; EVER: all days that are not kept any more."""

    EVER = 0, _("all before")
    MINUTE = 60, _("minute")
    HOUR = 3_600, _("hour")
    DAY = 86_400, _("day")


class Count(models.Model):
    """
    The counters of one name in one span of time, as one writer counted them.

    A writer is a connection of a process, so that no two transactions wait for the same row.
    `sweep` adds the rows of all writers into one without a writer, minutes into hours, hours into
    days, and old days into one row that stays. Totals are sums over rows of any span, and never
    shrink.
    """

    span = models.PositiveIntegerField(_("span"), choices=Span.choices)
    at = MomentField(_("from"))
    queue = models.CharField(_("queue"), max_length=200)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=20)
    #: A FailureReason where failures are counted, NO_REASON elsewhere.
    reason = models.SmallIntegerField(_("reason"), default=NO_REASON, db_default=NO_REASON)
    writer = models.CharField(_("writer"), max_length=100, blank=True, default="", db_default="")
    sent = models.BigIntegerField(_("sent"), default=0, db_default=0)
    completed = models.BigIntegerField(_("completed"), default=0, db_default=0)
    #: Attempts that failed, with their reason; a message may fail many times.
    failed = models.BigIntegerField(_("failed"), default=0, db_default=0)
    #: Attempts that were deferred because the name had no handler.
    deferred = models.BigIntegerField(_("deferred"), default=0, db_default=0)
    poisoned = models.BigIntegerField(_("poisoned"), default=0, db_default=0)
    #: Poison records retried by an operator, and those removed by an operator or retention.
    retried = models.BigIntegerField(_("retried"), default=0, db_default=0)
    removed = models.BigIntegerField(_("removed"), default=0, db_default=0)
    #: Handler time of completed and failed attempts, in sum and the longest.
    seconds = models.FloatField(_("seconds"), default=0, db_default=0)
    longest = models.FloatField(_("longest"), default=0, db_default=0)

    class Meta:
        db_table = "deadletter_count"
        verbose_name = pgettext_lazy("row", "count")
        verbose_name_plural = _("counts")
        indexes = (
            models.Index(
                fields=("span", "at"),
                name="deadletter_count_unfolded",
                condition=~models.Q(writer=""),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("span", "at", "queue", "name", "kind", "reason", "writer"),
                name="deadletter_count_row",
            ),
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.name} {self.at:%Y-%m-%d %H:%M}"
