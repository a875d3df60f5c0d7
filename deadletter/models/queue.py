"""Queues: a name and a failure policy, in a row that operators can edit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import connections, models, router, transaction
from django.db.models.signals import pre_delete
from django.dispatch import Signal, receiver
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..backoff import Backoff
from ..conf import NAME
from ..failure_policy import MOST_ATTEMPTS
from .fields import ReasonPoliciesField, SecondsField
from .primary import primary_alias

#: An edit has changed the stream policies of queues. Sent in its transaction, with `using` and the
#: `ids` of the queues; the lifecycle wakes the streams that the edit releases.
stream_policy_changed = Signal()


class OnPoison(models.TextChoices):
    QUARANTINE = "quarantine", _("quarantine as a poison record")
    DEAD_QUEUE = "dead_queue", _("move to the dead queue")
    DISCARD = "discard", _("discard with a warning in the log")


class StreamPolicy(models.TextChoices):
    STRICT = "strict", _("strict: followers wait for the retry")
    RELEASE = "release", _("release: followers go on at once")
    HALT = "halt", _("halt: as strict, and poison stops the stream")


class QueueQuerySet(models.QuerySet["Queue"]):
    """Updates send `stream_policy_changed`, as `Queue.save` does."""

    def named_and_dead(self) -> list[tuple[str, bool]]:
        """Return pairs of a name and whether the queue is the dead queue of another."""
        sources = Queue.objects.using(self.db).filter(dead_queue=models.OuterRef("pk"))
        return list(self.values_list("name", models.Exists(sources)))

    def update(self, **values: Any) -> int:
        if "stream_policy" not in values:
            return super().update(**values)
        with transaction.atomic(using=self.db):
            before = dict(
                self.select_for_update().order_by("pk").values_list("pk", "stream_policy")
            )
            changed = super().update(**values)
            _announce_policies(before, self.db)
        return changed


class Queue(models.Model):
    """A queue and its policy, which is read when it is used: an edit needs no restart."""

    name = models.CharField(
        _("name"),
        max_length=200,
        unique=True,
        validators=[
            RegexValidator(
                rf"\A{NAME.pattern}\Z",
                _("Letters, digits and _ . : / @ + - only, starting with a letter or digit."),
            )
        ],
    )
    max_attempts = models.PositiveIntegerField(
        _("max attempts"),
        default=5,
        null=True,
        blank=True,
        validators=[MaxValueValidator(MOST_ATTEMPTS)],
        help_text=_(
            "Executions before a message is dead. 0: dead at the first failure. Empty: never."
        ),
    )
    unregistered_attempts = models.PositiveIntegerField(
        _("unregistered attempts"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(MOST_ATTEMPTS)],
        help_text=_(
            "How often a message whose name no worker knows is put off before it is dead. "
            "Empty: as often as max attempts."
        ),
    )
    backoff_base = SecondsField(_("backoff base"), default=timedelta(seconds=30))
    backoff_cap = SecondsField(_("backoff cap"), default=timedelta(hours=1))
    jitter = models.FloatField(
        _("jitter"),
        default=0.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("Share of the delay added at random on top, 0 to 1."),
    )
    cooldown = SecondsField(
        _("cooldown"),
        null=True,
        blank=True,
        help_text=_("A fixed delay instead of the exponential one."),
    )
    reason_policies = ReasonPoliciesField(
        _("policies by reason"),
        default=dict,
        db_default={},
        blank=True,
        help_text=_(
            "What differs for one failure reason, for example "
            '{"TRANSPORT_UNAVAILABLE": {"max_attempts": 20, "backoff_base": 5}}.'
        ),
    )
    lease_timeout = SecondsField(_("lease timeout"), default=timedelta(seconds=60))
    expire_timeout = SecondsField(
        _("expire timeout"),
        null=True,
        blank=True,
        help_text=_("Messages not handled this long after they were sent are dead."),
    )
    on_poison = models.CharField(
        _("on poison"), max_length=16, choices=OnPoison.choices, default=OnPoison.QUARANTINE
    )
    dead_queue = models.ForeignKey(
        "self",
        verbose_name=_("dead queue"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="sources",
    )
    stream_policy = models.CharField(
        _("stream policy"), max_length=16, choices=StreamPolicy.choices, default=StreamPolicy.STRICT
    )
    poison_retention = SecondsField(
        _("poison retention"),
        null=True,
        blank=True,
        help_text=_("Poison records older than this are removed by the sweep. Empty: kept."),
    )
    paused = models.BooleanField(_("paused"), default=False)

    #: Fields that are not part of the policy; all others are.
    NOT_POLICY = ("id", "name", "paused")
    #: The sections of the form. Each field of the policy is in one of them.
    POLICY_SECTIONS = (
        (
            _("Retries"),
            (
                "max_attempts",
                "unregistered_attempts",
                "backoff_base",
                "backoff_cap",
                "jitter",
                "cooldown",
                "reason_policies",
            ),
        ),
        (_("Time limits"), ("lease_timeout", "expire_timeout")),
        (_("Dead messages"), ("on_poison", "dead_queue", "poison_retention")),
        (_("Streams"), ("stream_policy",)),
    )

    objects = QueueQuerySet.as_manager()

    class Meta:
        db_table = "deadletter_queue"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        ordering = ("name",)
        permissions = (("pause_queue", _("Can pause and resume queues")),)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(jitter__gte=0, jitter__lte=1), name="deadletter_queue_jitter"
            ),
            models.CheckConstraint(
                condition=~models.Q(dead_queue=models.F("id")), name="deadletter_queue_dead_self"
            ),
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Django passes the values of a row by position, callers pass theirs by keyword.
        super().__init__(*args, **(kwargs if args else with_destination(kwargs)))

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Validate and save: outside forms too, or a bad policy shows when a message fails."""
        using = kwargs.get("using") or router.db_for_write(Queue, instance=self)
        # Validation queries this database, not the default one.
        self._state.db = using
        with transaction.atomic(using=using):
            # Lock all rows: two queues that name each other at the same time must see it.
            every = type(self).objects.using(using).select_for_update().order_by("id")
            before = dict(every.values_list("id", "stream_policy"))
            self.full_clean(validate_unique=False, validate_constraints=False)
            self._check_unique_name(using)
            super().save(*args, **kwargs)
            if self.pk in before:
                _announce_policies({self.pk: before[self.pk]}, using)

    def clean(self) -> None:
        super().clean()
        if not self.reason_policies:
            # None: an empty form field, or "none" on the command line.
            self.reason_policies = {}
        problems = self._dead_queue_problems() | self._halt_problems() | self._number_problems()
        if problems:
            raise ValidationError(problems)

    @classmethod
    def policy_fields(cls) -> dict[str, models.Field[Any, Any]]:
        """
        Return the fields of the policy by name, in the order people are shown them.

        The form, the command line, `operations` and the system checks derive from this list.
        """
        fields = cls._meta.concrete_fields
        return {field.name: field for field in fields if field.name not in cls.NOT_POLICY}

    def backoff(self) -> Backoff:
        return Backoff(base=self.backoff_base, cap=self.backoff_cap, jitter=self.jitter)

    def _check_unique_name(self, using: str) -> None:
        # Model.validate_unique would query the default database, whatever is written.
        others = type(self).objects.using(using).filter(name=self.name).exclude(pk=self.pk)
        if others.exists():
            raise ValidationError({"name": self.unique_error_message(type(self), ("name",))})

    def _dead_queue_problems(self) -> dict[str, list[str]]:
        target = self.dead_queue
        if target is None:
            if self.on_poison != OnPoison.DEAD_QUEUE:
                return {}
            return {"dead_queue": [gettext("on_poison is dead_queue, but no dead queue is named.")]}
        found = []
        # Read again: the given object may be older than the row.
        stored = Queue.objects.using(self._alias()).filter(pk=target.pk).first()
        if target is self or target.name == self.name:
            found.append(gettext("A queue cannot be its own dead queue."))
        elif stored is None:
            found.append(gettext("That dead queue does not exist; create it first."))
        elif stored.dead_queue_id is not None:
            found.append(
                gettext("%(name)s already has a dead queue of its own; dead queues do not chain.")
                % {"name": target.name}
            )
        source = self.pk and self.sources.using(self._alias()).order_by("name").first()
        if source and source.pk != self.pk:
            found.append(
                gettext("This queue is the dead queue of %(name)s; dead queues do not chain.")
                % {"name": source.name}
            )
        return {"dead_queue": found} if found else {}

    def _halt_problems(self) -> dict[str, list[str]]:
        """Report halt without quarantine: a poison record halts the stream."""
        if self.stream_policy != StreamPolicy.HALT or self.on_poison == OnPoison.QUARANTINE:
            return {}
        # A row of an earlier release may have both: it can still be paused and edited otherwise.
        pair = {"stream_policy": self.stream_policy, "on_poison": self.on_poison}
        if self.pk and Queue.objects.using(self._alias()).filter(pk=self.pk, **pair).exists():
            return {}
        return {
            "stream_policy": [
                gettext(
                    "halt needs on_poison quarantine: with %(on_poison)s no record is left to halt "
                    "the stream."
                )
                % {"on_poison": self.on_poison}
            ]
        }

    def _number_problems(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if self.jitter != self.jitter:  # NaN passes the comparisons of the validators
            found["jitter"] = [gettext("Must be a number from 0 to 1.")]
        # The field has refused other values than durations, but clean() runs anyway.
        lease, expiry = _duration(self.lease_timeout), _duration(self.expire_timeout)
        if lease is not None and lease <= timedelta(0):
            found["lease_timeout"] = [gettext("Must be longer than 0.")]
        if expiry is not None:
            if expiry <= timedelta(0):
                found["expire_timeout"] = [
                    gettext("Must be longer than 0: messages would expire when they are sent.")
                ]
            elif lease is not None and lease > expiry:
                found["expire_timeout"] = [gettext("Must not be shorter than the lease timeout.")]
        return found

    def _alias(self) -> str:
        return primary_alias(self._state.db)


def _names_dead_queue(policy: Mapping[str, Any]) -> bool:
    return any(policy.get(key) is not None for key in ("dead_queue", "dead_queue_id"))


def with_destination(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy; a `dead_queue` without `on_poison` sets on_poison to dead_queue."""
    if "on_poison" in policy or not _names_dead_queue(policy):
        return dict(policy)
    return {**policy, "on_poison": OnPoison.DEAD_QUEUE.value}


def _announce_policies(before: dict[int, str], using: str) -> None:
    """Send `stream_policy_changed` for the queues whose policy differs from `before`."""
    # Read again: the save may have left out this field.
    now = dict(Queue.objects.using(using).filter(pk__in=before).values_list("pk", "stream_policy"))
    ids = [pk for pk, policy in before.items() if now.get(pk, policy) != policy]
    if ids:
        stream_policy_changed.send(Queue, ids=ids, using=using)


def _duration(value: Any) -> timedelta | None:
    return value if isinstance(value, timedelta) else None


@receiver(pre_delete, sender=Queue)
def refuse_to_orphan(instance: Queue, using: str, **kwargs: Any) -> None:
    """
    Refuse to delete a queue that has messages, or may get some from an open transaction.

    The database has no foreign key for it, and the message table is never locked as a whole. A
    sender holds the lock of an INSERT on that table before it looks up the queue. Therefore: wait a
    moment for the transactions that hold this lock; look for messages; delete; and after the
    commit, when no sender finds the queue any more, wait and look again. If a message was sent in
    between, the queue is restored.
    """
    connection = connections[using]
    is_guarded = connection.vendor == "postgresql"
    if is_guarded and (senders := wait_for_senders(connection)):
        raise _in_use(instance, senders)
    _refuse_messages(instance, using)
    if is_guarded:
        # A copy: the deletion clears the id of the object.
        row = {field.attname: getattr(instance, field.attname) for field in Queue._meta.fields}
        transaction.on_commit(lambda: _check_after_commit(Queue(**row), using), using=using)


#: Seconds that a deletion waits for transactions that may send.
SENDERS_WAIT = 2.0


def wait_for_senders(connection: Any, wait: float | None = None) -> list[str]:
    """
    Wait for the transactions that may have sent a message; describe those that are still open.

    Only transactions that are open at the beginning count: later ones see what this one has
    committed. Nothing is locked: pg_locks is read.
    """
    first = _senders(connection)
    left = first
    end = monotonic() + (SENDERS_WAIT if wait is None else wait)
    while left and monotonic() < end:
        sleep(0.02)
        now = _senders(connection)
        left = {key: text for key, text in now.items() if key in first}
    return list(left.values())


_SENDERS = """
SELECT l.virtualtransaction, a.pid, a.application_name,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = 'deadletter_message'::regclass
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY a.xact_start NULLS LAST
"""


def _senders(connection: Any) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(_SENDERS)
        return {
            key: f"a transaction of {age or 0:.0f} s by pid {pid} ({application or 'unnamed'})"
            for key, pid, application, age in cursor.fetchall()
        }


def _refuse_messages(queue: Queue, using: str) -> None:
    left = queue.messages.using(using).only("pk")[:1]
    if left:
        raise models.ProtectedError(
            gettext("Queue %(name)s still has messages; let them be handled, or remove them first.")
            % {"name": queue.name},
            set(left),
        )


def _in_use(queue: Queue, senders: list[str]) -> models.ProtectedError:
    return models.ProtectedError(
        gettext("Queue %(name)s is in use: %(senders)s may still be sending. Try again later.")
        % {"name": queue.name, "senders": "; ".join(senders[:3])},
        {queue},
    )


def _check_after_commit(queue: Queue, using: str) -> None:
    """After the commit: restore the queue if a message was sent, or may still be sent, to it."""
    senders = wait_for_senders(connections[using])
    try:
        _refuse_messages(queue, using)
    except models.ProtectedError:
        put_back(queue, using)
        raise
    if senders:
        put_back(queue, using)
        raise _in_use(queue, senders)


def put_back(queue: Queue, using: str) -> None:
    """Store a deleted queue under its id again, with another name if its own is taken."""
    rows = Queue.objects.using(using)
    with transaction.atomic(using=using):
        if rows.filter(name=queue.name).exclude(pk=queue.pk).exists():
            queue.name = f"{queue.name[:150]}-{queue.pk}"
        # A sweep may have found the messages first and created a queue for them.
        is_there = rows.filter(pk=queue.pk).exists()
        queue.save_base(using=using, force_insert=not is_there, force_update=is_there)
