"""Worker processes, their deaths, and open circuit breakers. Workers write these rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..durations import LATEST
from ..patterns import ServedQueues
from .fields import MomentField, ReadableJSONField

#: A worker writes every five seconds that it is alive; one not seen for this long counts as lost.
ALIVE = timedelta(seconds=30)


class WorkerQuerySet(models.QuerySet["WorkerProcess"]):
    def alive(self, now: datetime) -> WorkerQuerySet:
        """Narrow to workers that were seen in the last 30 seconds."""
        return self.filter(seen_at__gte=now - ALIVE)

    def served(self) -> ServedQueues:
        """Return the queues that these workers serve; `name in ...` understands patterns."""
        return ServedQueues(self.values_list("queues", flat=True))


class WorkerProcess(models.Model):
    """A `run_worker` process, as it last reported itself."""

    name = models.CharField(_("name"), max_length=200, unique=True)
    host = models.CharField(_("host"), max_length=200)
    pid = models.PositiveIntegerField(_("process id"))
    version = models.CharField(_("version"), max_length=50)
    #: The release of the application, DEADLETTER["RELEASE"].
    release = models.CharField(_("release"), max_length=100, blank=True, default="", db_default="")
    queues = ReadableJSONField(_("queues"), default=list)
    concurrency = models.PositiveIntegerField(_("concurrency"))
    #: Its handlers: [kind, name] or [kind, name, version], sorted.
    handlers = ReadableJSONField(_("handlers"), default=list, db_default=[])
    #: Running messages: [{"id", "name", "queue", "seconds"}], the longest first.
    running = models.JSONField(_("running"), default=list)
    held = models.PositiveIntegerField(_("held"), default=0)
    completed = models.PositiveBigIntegerField(_("completed"), default=0)
    failed = models.PositiveBigIntegerField(_("failed"), default=0)
    started_at = MomentField(_("started at"))
    seen_at = MomentField(_("seen at"))

    objects: ClassVar[WorkerQuerySet] = WorkerQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def is_alive(self, now: datetime) -> bool:
        """Return True if the worker was seen in the last 30 seconds."""
        return bool(now - self.seen_at <= ALIVE)


class WorkerDeath(models.Model):
    """A worker process that ended unexpectedly, as its supervisor saw it."""

    name = models.CharField(_("name"), max_length=200)
    host = models.CharField(_("host"), max_length=200)
    pid = models.PositiveIntegerField(_("process id"))
    died_at = MomentField(_("died at"))
    signal = models.PositiveSmallIntegerField(_("signal"), null=True)
    exit_code = models.IntegerField(_("exit code"), null=True)
    #: Peak memory in bytes.
    peak_memory = models.BigIntegerField(_("peak memory"), null=True)
    #: In-flight messages: [{"id", "name", "queue", "running"}], running ones first.
    held = models.JSONField(_("held"), default=list)
    #: The process that replaced it; empty: none.
    successor = models.CharField(_("successor"), max_length=200, blank=True)

    class Meta:
        db_table = "deadletter_worker_death"
        verbose_name = _("worker death")
        verbose_name_plural = _("worker deaths")
        ordering = ("-id",)
        default_permissions = ()
        indexes = (models.Index(fields=["died_at", "id"], name="deadletter_worker_died"),)

    def __str__(self) -> str:
        return self.name


#: `Breaker.until` of a name that a person holds until it is reset.
UNTIL_RESET = LATEST


class BreakerQuerySet(models.QuerySet["Breaker"]):
    def open(self, now: datetime) -> BreakerQuerySet:
        """Narrow to breakers that are open now."""
        return self.filter(until__gt=now)

    def failing(self) -> BreakerQuerySet:
        """Narrow to names whose handler kept failing: not to those that only a person holds."""
        return self.exclude(is_held=True, failures=0)


class Breaker(models.Model):
    """
    An open circuit breaker: messages of this name wait.

    Because its handler keeps failing: the row stays after `until`; then the next message is tried,
    and its success removes the row. A name to which nothing is sent keeps its row. Or because a
    person holds the name: only a reset, or the time `until`, ends that.
    """

    name = models.CharField(_("message name"), max_length=200, unique=True)
    failures = models.PositiveIntegerField(_("consecutive failures"))
    error = models.TextField(_("last error"))
    opened_at = MomentField(_("opened at"))
    until = MomentField(_("held until"))
    #: A worker, or the person who holds the name.
    opened_by = models.CharField(_("opened by"), max_length=200)
    is_held = models.BooleanField(_("held by a person"), default=False, db_default=False)
    #: The reason that this person gave.
    why = models.TextField(_("why"), default="", db_default="", blank=True)

    objects: ClassVar[BreakerQuerySet] = BreakerQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_breaker"
        verbose_name = _("circuit breaker")
        verbose_name_plural = _("circuit breakers")
        ordering = ("name",)
        permissions = (("hold_breaker", _("Can hold and reset circuit breakers")),)

    def __str__(self) -> str:
        return self.name

    @property
    def held_until(self) -> datetime | None:
        """The end of the hold; None: a reset."""
        return None if self.until >= UNTIL_RESET else self.until
