"""The outbox: what is to be published, who publishes it, and what is known of the brokers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .fields import JSONTextField, MomentField, ReadableJSONField


class OutboxMessage(models.Model):
    """
    A message that a broker has not confirmed yet.

    Rows are inserted by `publish` and deleted after the confirm. Only those that the broker
    refuses or whose topic is paused, and those of the same key behind them, are ever updated.
    """

    broker = models.CharField(_("broker"), max_length=100)
    #: Which of the broker's lanes; a key is always in the same one.
    lane = models.SmallIntegerField(_("lane"))
    topic = models.CharField(_("topic"), max_length=200)
    key = models.CharField(_("key"), max_length=200, null=True)
    payload = JSONTextField(_("payload"), null=True)
    headers = JSONTextField(_("headers"), null=True)
    created_at = MomentField(_("created at"))
    #: It was refused, is paused, or waits behind such a message of its key.
    held = models.BooleanField(_("held"), default=False, db_default=False)
    #: A relay met it while its topic was paused; it is left alone until that is resumed.
    paused = models.BooleanField(_("paused"), default=False, db_default=False)
    #: How often the broker has refused it.
    attempts = models.PositiveIntegerField(_("attempts"), default=0, db_default=0)
    #: When a refused message is tried again; None: it was not refused.
    retry_at = MomentField(_("retry at"), null=True)
    #: The refusals, as in the history of a message.
    history = ReadableJSONField(_("history"), null=True)
    #: For a message that was a poison record before: its id there, and how often it died.
    message_id = models.BigIntegerField(_("message id"), null=True)
    poison_count = models.PositiveIntegerField(_("poison count"), default=0, db_default=0)

    class Meta:
        db_table = "deadletter_outbox"
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox")
        ordering = ("id",)
        default_permissions = ("view",)
        indexes = (
            # In the order in which a lane is published.
            models.Index(
                fields=["broker", "lane", "id"],
                name="deadletter_outbox_ready",
                condition=Q(held=False),
            ),
            models.Index(
                fields=["broker", "lane", "key", "id"],
                name="deadletter_outbox_held",
                condition=Q(held=True),
            ),
            models.Index(
                fields=["broker", "lane", "retry_at"],
                name="deadletter_outbox_refused",
                condition=Q(retry_at__isnull=False, paused=False),
            ),
            # The topics that were paused, and the first messages of each.
            models.Index(
                fields=["broker", "lane", "topic", "id"],
                name="deadletter_outbox_paused",
                condition=Q(paused=True),
            ),
            models.Index(
                fields=["message_id"],
                name="deadletter_outbox_retried",
                condition=Q(message_id__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"


class OutboxPause(models.Model):
    """A broker, or topics of one, that nothing is published to until it is resumed."""

    broker = models.CharField(_("broker"), max_length=100)
    #: A topic, or a pattern of topics; "": the whole broker.
    topic = models.CharField(_("topic"), max_length=200, blank=True, default="")
    paused_at = MomentField(_("paused at"))
    by = models.CharField(_("by"), max_length=200, blank=True, default="")
    why = models.TextField(_("why"), blank=True, default="")

    class Meta:
        db_table = "deadletter_outbox_pause"
        verbose_name = _("pause of the outbox")
        verbose_name_plural = _("pauses of the outbox")
        ordering = ("broker", "topic")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["broker", "topic"], name="deadletter_outbox_pauses"),
        )

    def __str__(self) -> str:
        return f"{self.broker}: {self.topic}" if self.topic else self.broker


class PublishedMessage(models.Model):
    """A message that its broker has confirmed, kept for a while to be published again."""

    #: That of its row in the outbox.
    id = models.BigIntegerField(_("id"), primary_key=True)
    broker = models.CharField(_("broker"), max_length=100)
    topic = models.CharField(_("topic"), max_length=200)
    key = models.CharField(_("key"), max_length=200, null=True)
    payload = JSONTextField(_("payload"), null=True)
    headers = JSONTextField(_("headers"), null=True)
    created_at = MomentField(_("created at"))
    published_at = MomentField(_("published at"))

    class Meta:
        db_table = "deadletter_outbox_archive"
        verbose_name = _("published message")
        verbose_name_plural = _("published messages")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = (("publish_again", _("Can publish messages again")),)
        indexes = (
            models.Index(fields=["broker", "published_at", "id"], name="deadletter_archive_time"),
            models.Index(fields=["topic", "id"], name="deadletter_archive_topic"),
            models.Index(
                fields=["key", "id"], name="deadletter_archive_key", condition=Q(key__isnull=False)
            ),
        )

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"


class OutboxLaneQuerySet(models.QuerySet["OutboxLane"]):
    def leased(self, now: datetime) -> OutboxLaneQuerySet:
        """Narrow to lanes that a relay holds."""
        return self.filter(leased_until__gt=now)


class OutboxLane(models.Model):
    """A share of a broker's messages, published by one relay at a time."""

    broker = models.CharField(_("broker"), max_length=100)
    number = models.SmallIntegerField(_("number"))
    #: The relay that holds it, until the lease runs out; a token of its own for each start.
    token = models.CharField(_("token"), max_length=32, default="")
    worker = models.CharField(_("worker"), max_length=200, default="")
    leased_until = MomentField(_("leased until"), null=True)

    objects: ClassVar[OutboxLaneQuerySet] = OutboxLaneQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_outbox_lane"
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")
        ordering = ("broker", "number")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["broker", "number"], name="deadletter_outbox_lanes"),
        )

    def __str__(self) -> str:
        return f"{self.broker}/{self.number}"


#: A relay that was not seen for so long counts as lost: as long as the lease of its lanes.
RELAY_ALIVE = timedelta(seconds=60)


class OutboxRelayQuerySet(models.QuerySet["OutboxRelay"]):
    def alive(self, now: datetime) -> OutboxRelayQuerySet:
        """Narrow to relays that were seen in the last minute."""
        return self.filter(seen_at__gt=now - RELAY_ALIVE)


class OutboxRelay(models.Model):
    """A relay, as it last reported itself: lanes are shared among those that are alive."""

    broker = models.CharField(_("broker"), max_length=100)
    token = models.CharField(_("token"), max_length=32)
    worker = models.CharField(_("worker"), max_length=200)
    seen_at = MomentField(_("seen at"))

    objects: ClassVar[OutboxRelayQuerySet] = OutboxRelayQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_outbox_relay"
        verbose_name = _("relay")
        verbose_name_plural = _("relays")
        ordering = ("broker", "worker")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["broker", "token"], name="deadletter_outbox_relays"),
        )

    def __str__(self) -> str:
        return f"{self.broker}: {self.worker}"


class BrokerStatus(models.Model):
    """What the relays last saw of a broker."""

    name = models.CharField(_("broker"), max_length=100, primary_key=True)
    #: Since when it accepts nothing; None: it does.
    unavailable_since = MomentField(_("unavailable since"), null=True)
    error = models.TextField(_("error"), default="")
    #: When it last confirmed a message.
    confirmed_at = MomentField(_("last confirm"), null=True)

    class Meta:
        db_table = "deadletter_broker"
        verbose_name = _("broker")
        verbose_name_plural = _("brokers")
        ordering = ("name",)
        default_permissions = ("view",)
        permissions = (("pause_outbox", _("Can pause and resume brokers and topics")),)

    def __str__(self) -> str:
        return self.name
