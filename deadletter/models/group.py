"""
Failure groups: failures with the same cause, kept when their messages are gone.

Settles only insert changes; the housekeeper adds them up. Nothing waits for the row of a group.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..status import FailureReason
from .fields import FailureReasonField, MomentField, ReadableJSONField

#: Characters of the error of the latest failure that a group keeps.
ERROR_LIMIT = 1_000
#: Characters of a release, a key of a tag, and a value of a tag.
RELEASE_LIMIT, TAG_KEY_LIMIT, TAG_VALUE_LIMIT = 100, 100, 200


class GroupState(models.TextChoices):
    NEW = "new", pgettext_lazy("group", "new")
    ACKNOWLEDGED = "acknowledged", pgettext_lazy("group", "acknowledged")
    MUTED = "muted", pgettext_lazy("group", "muted")
    RESOLVED = "resolved", pgettext_lazy("group", "resolved")
    REGRESSED = "regressed", pgettext_lazy("group", "regressed")


#: States that need a person.
OPEN_STATES = (GroupState.REGRESSED, GroupState.NEW, GroupState.ACKNOWLEDGED)


class FailureGroupQuerySet(models.QuerySet["FailureGroup"]):
    def main(self) -> FailureGroupQuerySet:
        """Leave out groups that were merged into another one."""
        return self.filter(merged_into="")

    def needing_a_person(self) -> FailureGroupQuerySet:
        """Narrow to groups that are not muted, resolved or merged."""
        return self.main().filter(state__in=OPEN_STATES)


class FailureGroup(models.Model):
    """Failures with one fingerprint: what happened ever, and what people decided about it."""

    fingerprint = models.CharField(_("fingerprint"), max_length=16, unique=True)
    name = models.CharField(_("name"), max_length=200)
    #: The queue of the latest failure.
    queue = models.CharField(_("queue"), max_length=200, blank=True)
    exception = models.CharField(_("exception"), max_length=200, blank=True)
    frame = models.CharField(_("place"), max_length=300, blank=True)
    reason = FailureReasonField(_("reason"), default=FailureReason.UNKNOWN)
    #: The start of the text of the latest failure.
    error = models.TextField(_("last error"), blank=True)
    failures = models.BigIntegerField(_("failures"), default=0, db_default=0)
    deaths = models.BigIntegerField(_("deaths"), default=0, db_default=0)
    first_failed_at = MomentField(_("first failure"))
    last_failed_at = MomentField(_("last failure"))
    first_died_at = MomentField(_("first death"), null=True)
    last_died_at = MomentField(_("last death"), null=True)
    #: The releases of the first and of the latest failure that named one.
    first_release = models.CharField(_("first release"), max_length=RELEASE_LIMIT, blank=True)
    last_release = models.CharField(_("last release"), max_length=RELEASE_LIMIT, blank=True)

    state = models.CharField(
        _("state"), max_length=16, choices=GroupState.choices, default=GroupState.NEW
    )
    state_at = MomentField(_("state since"))
    #: Who set the state; "": a failure did.
    state_by = models.CharField(_("state set by"), max_length=200, blank=True)
    #: The mute ends at this time, or when `failures` reach this number; both empty: never.
    muted_until = MomentField(_("muted until"), null=True)
    muted_until_failures = models.BigIntegerField(_("muted until failures"), null=True)
    #: The release that contains the repair: failures in releases that began before it are no
    #: regression. "": resolved now.
    resolved_in = models.CharField(_("resolved in"), max_length=RELEASE_LIMIT, blank=True)
    #: The user name of the person who works on it.
    owner = models.CharField(_("owner"), max_length=200, blank=True)
    ticket = models.CharField(_("ticket"), max_length=500, blank=True)
    #: The fingerprint of the group that this one is shown in; "": it stands for itself.
    merged_into = models.CharField(_("merged into"), max_length=16, blank=True, default="")

    objects: ClassVar[FailureGroupQuerySet] = FailureGroupQuerySet.as_manager()  # type: ignore[assignment]

    class Meta:
        db_table = "deadletter_group"
        verbose_name = _("failure group")
        verbose_name_plural = _("failure groups")
        ordering = ("-last_failed_at", "-id")
        default_permissions = ("view",)
        permissions = (
            ("triage_group", _("Can acknowledge, mute, resolve and assign failure groups")),
            ("note_group", _("Can write notes on failure groups")),
            ("merge_group", _("Can merge and split failure groups")),
        )
        indexes = (
            models.Index(fields=["last_failed_at", "id"], name="deadletter_group_time"),
            models.Index(fields=["state", "last_failed_at", "id"], name="deadletter_group_state"),
            models.Index(fields=["name", "last_failed_at", "id"], name="deadletter_group_name"),
            models.Index(
                fields=["owner", "last_failed_at", "id"],
                name="deadletter_group_owner",
                condition=~Q(owner=""),
            ),
            models.Index(
                fields=["merged_into"],
                name="deadletter_group_merged",
                condition=~Q(merged_into=""),
            ),
            # Mutes that end at a time.
            models.Index(
                fields=["muted_until"],
                name="deadletter_group_muted",
                condition=Q(state="muted", muted_until__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.fingerprint}"


class GroupChange(models.Model):
    """
    Failures and deaths of one group in one transaction, not yet added to the group.

    Only inserted by settles, so that no settle waits for another; the housekeeper adds them to the
    rows of the groups and deletes them.
    """

    id = models.BigAutoField(primary_key=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    name = models.CharField(_("name"), max_length=200)
    queue = models.CharField(_("queue"), max_length=200)
    exception = models.CharField(_("exception"), max_length=200)
    frame = models.CharField(_("place"), max_length=300)
    reason = models.SmallIntegerField(_("reason"))
    error = models.TextField(_("error"))
    release = models.CharField(_("release"), max_length=RELEASE_LIMIT)
    failures = models.PositiveIntegerField(_("failures"), default=0)
    deaths = models.PositiveIntegerField(_("deaths"), default=0)
    #: [[key, value, times]].
    tags = ReadableJSONField(_("tags"), default=list)
    at = MomentField(_("at"))

    class Meta:
        db_table = "deadletter_group_change"
        verbose_name = _("group change")
        verbose_name_plural = _("group changes")
        default_permissions = ()

    def __str__(self) -> str:
        return self.fingerprint


class GroupHour(models.Model):
    """Failures and deaths of a group in one hour, by release."""

    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    at = MomentField(_("from"))
    release = models.CharField(_("release"), max_length=RELEASE_LIMIT, blank=True)
    failures = models.BigIntegerField(_("failures"), default=0)
    deaths = models.BigIntegerField(_("deaths"), default=0)

    class Meta:
        db_table = "deadletter_group_hour"
        verbose_name = _("hour of a group")
        verbose_name_plural = _("hours of groups")
        default_permissions = ()
        indexes = (
            models.Index(fields=["at"], name="deadletter_group_hour_time"),
            # Whether a group failed in a release.
            models.Index(fields=["fingerprint", "release"], name="deadletter_group_hour_of"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("fingerprint", "at", "release"), name="deadletter_group_hour_row"
            ),
        )

    def __str__(self) -> str:
        return f"{self.fingerprint} {self.at:%Y-%m-%d %H:%M}"


class GroupTag(models.Model):
    """How often a value of a tag was in the failures of a group. A bounded number of values."""

    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    key = models.CharField(_("key"), max_length=TAG_KEY_LIMIT)
    #: "": all values that came after the bound was reached.
    value = models.CharField(_("value"), max_length=TAG_VALUE_LIMIT, blank=True)
    failures = models.BigIntegerField(_("failures"), default=0)
    last_at = MomentField(_("last failure"))

    class Meta:
        db_table = "deadletter_group_tag"
        verbose_name = _("tag of a group")
        verbose_name_plural = _("tags of groups")
        default_permissions = ()
        indexes = (
            models.Index(fields=["key", "value"], name="deadletter_group_tag_value"),
            models.Index(fields=["last_at"], name="deadletter_group_tag_time"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("fingerprint", "key", "value"), name="deadletter_group_tag_row"
            ),
        )

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class MessageTag(models.Model):
    """A tag of a message that died: finds the poison records of a customer."""

    id = models.BigAutoField(primary_key=True)
    message_id = models.BigIntegerField(_("message id"))
    key = models.CharField(_("key"), max_length=TAG_KEY_LIMIT)
    value = models.CharField(_("value"), max_length=TAG_VALUE_LIMIT)
    at = MomentField(_("at"))

    class Meta:
        db_table = "deadletter_message_tag"
        verbose_name = _("tag of a message")
        verbose_name_plural = _("tags of messages")
        default_permissions = ()
        indexes = (
            models.Index(fields=["key", "value", "message_id"], name="deadletter_tag_value"),
            models.Index(fields=["at", "id"], name="deadletter_tag_time"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("message_id", "key", "value"), name="deadletter_tag_row"
            ),
        )

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class GroupEvent(models.Model):
    """What people did with a group, what they wrote, and what happened to it by itself."""

    class Kind(models.TextChoices):
        NOTE = "note", _("note")
        STATE = "state", _("state")
        OWNER = "owner", _("owner")
        TICKET = "ticket", _("ticket")
        MERGE = "merge", _("merged")
        SPLIT = "split", _("split")
        REGRESSED = "regressed", _("came back")
        UNMUTED = "unmuted", _("mute ended")

    id = models.BigAutoField(primary_key=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    at = MomentField(_("at"))
    #: A user name, or what acted: "worker", "command line".
    by = models.CharField(_("by"), max_length=200, blank=True)
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    #: The text of a note, or the reason of an act.
    text = models.TextField(_("text"), blank=True)
    #: What changed: {"state": …, "until": …, "owner": …, "release": …}.
    detail = ReadableJSONField(_("detail"), default=dict)
    #: The note that this one answers.
    answers = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="replies")

    class Meta:
        db_table = "deadletter_group_event"
        verbose_name = _("event of a group")
        verbose_name_plural = _("events of groups")
        ordering = ("id",)
        default_permissions = ()
        indexes = (models.Index(fields=["fingerprint", "id"], name="deadletter_group_event_of"),)

    def __str__(self) -> str:
        return f"{self.get_kind_display()} #{self.pk}"


class ApplicationRelease(models.Model):
    """A release of the application that a worker ran."""

    name = models.CharField(_("name"), max_length=RELEASE_LIMIT, unique=True)
    first_seen_at = MomentField(_("first seen"))
    last_seen_at = MomentField(_("last seen"))

    class Meta:
        db_table = "deadletter_release"
        verbose_name = _("release")
        verbose_name_plural = _("releases")
        ordering = ("-first_seen_at", "-id")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
