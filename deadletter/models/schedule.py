"""Schedules: what is sent when, and the record of their latest moments."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import timetable
from ..timetable import Timetable, TimetableError
from .fields import JSONTextField, MomentField, SecondsField
from .message import FIRST_PRIORITY, LAST_PRIORITY, Kind

#: The longest a schedule may be late and still fire, with missed runs "skip".
GRACE = timedelta(minutes=1)
#: How far a clock is set back at most. A last moment further ahead is that of a wrong clock.
CLOCK_ERROR = timedelta(days=1)


class Sends(models.TextChoices):
    """The kind of what a schedule sends; the values are those of `Kind`."""

    MESSAGE = Kind.MESSAGE.value, _("message")
    TASK = Kind.TASK.value, _("task")


class Overlap(models.TextChoices):
    """What happens at a moment while an earlier message of the schedule is unfinished."""

    SKIP = "skip", _("skip: send nothing while an earlier message waits or runs")
    ONE = "one", _("one: send if none waits; one may run")
    ALLOW = "allow", _("allow: send always")


class MissedRuns(models.TextChoices):
    """What happens to moments that passed while no worker fired."""

    ONCE = "once", _("once: fire the latest one, however late")
    SKIP = "skip", _("skip: fire the latest one if it is not later than the grace")
    ALL = "all", _("all: fire each of them, the latest hundred at most")


class RunOutcome(models.TextChoices):
    SENT = "sent", _("sent")
    SKIPPED = "skipped", _("skipped")
    MISSED = "missed", _("missed")
    FAILED = "failed", _("failed")


def default_time_zone() -> str:
    return settings.TIME_ZONE


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def due(self, now: datetime) -> ScheduleQuerySet:
        """Narrow to schedules that are to be fired, the longest overdue first."""
        return self.filter(due_at__lte=now).order_by("due_at", "id")

    def failing(self) -> ScheduleQuerySet:
        """Narrow to schedules whose last attempt to fire has failed."""
        return self.filter(failing_since__isnull=False)

    def declared(self) -> ScheduleQuerySet:
        """Narrow to schedules that the code or the settings have declared."""
        return self.exclude(declaration="")

    def without_bodies(self) -> ScheduleQuerySet:
        """Leave out the columns that may be large and that no list shows."""
        return self.defer("payload", "headers")


class Schedule(models.Model):
    """
    What is sent at which moments.

    `next_at` is the next moment; it is computed from the last one, `last_at`, never from the time
    of the firing. `due_at` is when a worker fires it: the moment and its jitter, or later after a
    failure. Both are NULL while nothing is to be fired: paused, orphaned, or past its end.
    """

    name = models.CharField(_("name"), max_length=200, unique=True)
    kind = models.CharField(_("sends"), max_length=16, choices=Sends.choices, default=Sends.MESSAGE)
    target = models.CharField(
        _("message name or task"),
        max_length=200,
        help_text=_("The name of the message, or the path of the task: shop.tasks.report."),
    )
    #: Of a task: {"args": […], "kwargs": {…}}.
    payload = JSONTextField(_("payload"), null=True, blank=True)
    queue = models.CharField(
        _("queue"),
        max_length=200,
        blank=True,
        help_text=_("Empty: the queue of the task, or default."),
    )
    stream = models.CharField(_("stream"), max_length=200, null=True, blank=True)
    key = models.CharField(
        _("key"),
        max_length=200,
        null=True,
        blank=True,
        help_text=_("Nothing is sent while the queue has an unfinished message of this key."),
    )
    priority = models.SmallIntegerField(
        _("priority"),
        null=True,
        blank=True,
        validators=[MinValueValidator(FIRST_PRIORITY), MaxValueValidator(LAST_PRIORITY)],
        help_text=_("-100 (first) to 100 (last). Empty: that of the task, or 0."),
    )
    headers = JSONTextField(_("headers"), null=True, blank=True)
    expires_in = SecondsField(
        _("expires in"),
        null=True,
        blank=True,
        help_text=_("A message not handled this long after its firing is dead."),
    )

    cron = models.CharField(
        _("cron expression"),
        max_length=timetable.CRON_LENGTH,
        blank=True,
        help_text=_("Minute, hour, day of month, month, day of week: 0 3 * * * is each day at 3."),
    )
    interval = SecondsField(_("interval"), null=True, blank=True)
    at = MomentField(_("at"), null=True, blank=True, help_text=_("A single moment."))
    time_zone = models.CharField(
        _("time zone"),
        max_length=64,
        default=default_time_zone,
        help_text=_("Of the cron expression: an IANA name such as Europe/Berlin."),
    )
    start = MomentField(_("start"), null=True, blank=True, help_text=_("No moment before it."))
    end = MomentField(_("end"), null=True, blank=True, help_text=_("No moment after it."))
    max_runs = models.PositiveIntegerField(
        _("max runs"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("The schedule ends after so many messages. Empty: it does not."),
    )
    jitter = SecondsField(
        _("jitter"),
        default=timedelta(0),
        help_text=_("Each moment is put off by up to this, always by the same."),
    )
    overlap = models.CharField(
        _("overlap"), max_length=16, choices=Overlap.choices, default=Overlap.SKIP
    )
    missed = models.CharField(
        _("missed runs"), max_length=16, choices=MissedRuns.choices, default=MissedRuns.ONCE
    )
    grace = SecondsField(
        _("grace"),
        default=GRACE,
        help_text=_("With missed runs “skip”: how late the latest moment may be fired."),
    )
    paused = models.BooleanField(_("paused"), default=False)

    #: Since when the code no longer declares it; None: it does, or never has.
    orphaned_at = MomentField(_("orphaned since"), null=True, blank=True)
    #: A digest of the declaration that the row was made or synchronised from; "": there is none.
    declaration = models.CharField(_("declaration"), max_length=64, blank=True, default="")
    created_at = MomentField(_("created at"))
    last_at = MomentField(_("last moment"), null=True, blank=True)
    next_at = MomentField(_("next moment"), null=True, blank=True)
    due_at = MomentField(_("due at"), null=True, blank=True)
    #: Messages sent at its moments; those of "run now" are not counted.
    run_count = models.PositiveIntegerField(_("runs"), default=0)
    last_outcome = models.CharField(
        _("last outcome"), max_length=16, choices=RunOutcome.choices, blank=True, default=""
    )
    #: Why the last attempt to fire failed; "": it did not.
    last_error = models.TextField(_("last error"), blank=True, default="")
    failing_since = MomentField(_("failing since"), null=True, blank=True)

    #: Fields that say what is sent when: those that people edit and declarations give.
    DEFINITION = (
        *("kind", "target", "payload", "queue", "stream", "key", "priority", "headers"),
        *("expires_in", "cron", "interval", "at", "time_zone", "start", "end", "max_runs"),
        *("jitter", "overlap", "missed", "grace"),
    )
    #: The fields among them that say which moments there are; and all that say when it is due.
    MOMENTS = ("cron", "interval", "at", "time_zone", "start")
    TIMING = (*MOMENTS, "end", "max_runs", "jitter")

    objects: ClassVar[ScheduleQuerySet] = ScheduleQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)
        permissions = (
            ("run_schedule", _("Can run schedules now")),
            ("pause_schedule", _("Can pause and resume schedules")),
        )
        indexes = (
            # What is to be fired; nothing else is in it.
            models.Index(
                fields=["due_at", "id"],
                name="deadletter_schedule_due",
                condition=Q(due_at__isnull=False),
            ),
            models.Index(
                fields=["failing_since", "id"],
                name="deadletter_schedule_failing",
                condition=Q(failing_since__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Check the fields against each other; what is sent is checked by `schedules.messages`."""
        super().clean()
        problems: dict[str, list[str]] = {}
        self.cron = " ".join(self.cron.split())
        given = [name for name in ("cron", "interval", "at") if getattr(self, name)]
        if len(given) != 1:
            text = gettext("Give a cron expression, an interval or a time: exactly one of them.")
            problems["interval" if len(given) == 0 else given[-1]] = [text]
        if not self.name.strip() or not self.name.isprintable():
            problems["name"] = [gettext("Give a name of printable characters.")]
        if self.interval is not None and self.interval < timetable.SHORTEST_INTERVAL:
            problems["interval"] = [gettext("An interval has at least one second.")]
        if self.interval and self.jitter and self.jitter >= self.interval:
            problems["jitter"] = [gettext("The jitter is not shorter than the interval.")]
        if self.start and self.end and self.end < self.start:
            problems["end"] = [gettext("The end is before the start.")]
        for check in (self._check_zone, self._check_cron):
            try:
                check()
            except TimetableError as error:
                problems.setdefault(error.field, []).append(str(error))
        if problems:
            raise ValidationError(problems)

    def _check_zone(self) -> None:
        timetable.read_zone(self.time_zone)

    def _check_cron(self) -> None:
        if self.cron:
            timetable.check_cron(self.cron)

    def timetable(self) -> Timetable:
        """Return its moments. The anchor has whole seconds."""
        anchor = self.created_at.astimezone(UTC).replace(microsecond=0) if self.created_at else None
        return Timetable(
            cron=self.cron,
            interval=self.interval or None,
            at=self.at,
            time_zone=self.time_zone,
            start=self.start,
            end=self.end,
            anchor=anchor,
        )

    @property
    def is_declared(self) -> bool:
        return bool(self.declaration)

    @property
    def is_ended(self) -> bool:
        """True if no moment is left, although nothing holds the schedule back."""
        return self.next_at is None and not self.paused and self.orphaned_at is None

    def set_next(self, moment: datetime | None) -> None:
        """Set the next moment, and when it is due."""
        if self.max_runs is not None and self.run_count >= self.max_runs:
            moment = None
        self.next_at = self.due_at = moment
        if moment is not None:
            self.due_at = moment + timetable.offset(self.name, moment, self.jitter)

    def plan(self, now: datetime, *, edited: Collection[str] = MOMENTS) -> None:
        """
        Set the next moment for a schedule that is new, resumed or edited.

        With other moments than before those that passed meanwhile are not missed: nothing was to be
        sent at them. Otherwise the next one stays, also if it is overdue. A moment that was fired
        already does not come again when the clock was set back; but a clock that was a year ahead
        for a moment does not keep the schedule waiting for a year. Raises: TimetableError.
        """
        if self.paused or self.orphaned_at is not None:
            self.set_next(None)
        elif self.next_at is None or set(edited) & set(self.MOMENTS):
            last = self.last_at or now
            is_wrong = last - now > CLOCK_ERROR
            self.set_next(self.timetable().after(now if is_wrong else max(now, last)))
        else:
            is_over = self.end is not None and self.next_at > self.end
            self.set_next(None if is_over else self.next_at)

    def definition(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.DEFINITION}


class ScheduleRun(models.Model):
    """
    What happened at one moment of a schedule, or when a person ran it.

    The row and the message that it names are written by one transaction. The newest hundred of each
    schedule are kept.
    """

    schedule = models.ForeignKey(
        Schedule,
        verbose_name=_("schedule"),
        on_delete=models.CASCADE,
        related_name="runs",
        db_index=False,
    )
    #: The moment; None: a person ran it.
    moment = MomentField(_("moment"), null=True)
    fired_at = MomentField(_("fired at"))
    outcome = models.CharField(_("outcome"), max_length=16, choices=RunOutcome.choices)
    message_id = models.BigIntegerField(_("message id"), null=True)
    #: Why nothing was sent.
    why = models.TextField(_("why"), blank=True, default="")
    #: The person who ran it.
    by = models.CharField(_("by"), max_length=200, blank=True, default="")
    #: How many moments the row stands for: missed ones in a row have one, that of the first.
    count = models.PositiveIntegerField(_("moments"), default=1)

    class Meta:
        db_table = "deadletter_schedule_run"
        verbose_name = _("run of a schedule")
        verbose_name_plural = _("runs of schedules")
        ordering = ("-id",)
        default_permissions = ("view",)
        indexes = (models.Index(fields=["schedule", "id"], name="deadletter_schedule_runs"),)
        constraints = (
            models.UniqueConstraint(
                fields=["schedule", "moment"], name="deadletter_schedule_moment"
            ),
        )

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.moment or self.fired_at:%Y-%m-%d %H:%M:%S}"

    @property
    def is_manual(self) -> bool:
        return self.moment is None
