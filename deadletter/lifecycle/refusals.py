"""
The reasons why an act on a message or poison record is refused, with their words in one table.

A `Refusal` is the English sentence as a `str`, so that results can be compared, logged and printed
as before. Its `label` is the same sentence in the active language.
"""

from __future__ import annotations

import enum
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from ..text import page_text


@enum.unique
class RefusalReason(enum.Enum):
    """Why an act was refused. The value is the English sentence, which is also the message id."""

    # Messages in a queue
    ACTIVE = _("message %(id)s is active; wait for its lease to end")
    ACTIVE_RETRY = _("message %(id)s is active; wait for its worker, or for its lease to end")
    ACTIVE_RELEASE = _("message %(id)s is active; only its worker can release it")
    BLOCKED = _(
        "message %(id)s is blocked; retry what holds its stream, or release it to let it pass"
    )
    NEVER_TRIED = _("message %(id)s is %(state)s and was never tried; there is nothing to retry")
    NO_STREAM = _("message %(id)s belongs to no stream, so nothing holds it back")
    INSTANCE_WAITS = _(
        "instance %(instance)s waits for message %(id)s; poison it, so that its flow receives "
        "the failure, or cancel the instance"
    )
    NOT_DEAD = _(
        "message %(id)s is %(state)s; only a dead message can be retried with another queue, "
        "payload or rate"
    )
    DEAD_COUNTS_FROM_ZERO = _(
        "message %(id)s is dead; a retry of a dead message always resets its attempts"
    )

    DEAD = _("message %(id)s is dead; remove its poison record %(poison_id)s instead")
    DEAD_IN_DEAD_QUEUE = _(
        "message %(id)s is dead; remove it from its dead queue, as message %(copy)s, instead"
    )

    # Poison records and messages in dead queues
    QUEUE_MISSING = _("queue %(queue)r does not exist; create it or name another")
    KEY_TAKEN = _(
        "an unfinished message with key %(key)r is in the queue; wait for it or remove it first"
    )
    ID_TAKEN = _("a message with its id %(id)s, or from the same source, is in a queue")
    POISON_HAS_ID = _("poison record %(poison_id)s has its id %(id)s; retry or remove that first")
    NOT_MOVED = _(
        "message %(id)s did not come from another queue; it has no original queue to return to"
    )
    NO_SOURCE_QUEUE = _(
        "the queue that message %(id)s died in is not recorded, and no queues name its dead "
        "queue; name the target queue"
    )
    SEVERAL_SOURCE_QUEUES = _(
        "the queue that message %(id)s died in is not recorded, and %(n)s queues name its "
        "dead queue; name the target queue"
    )
    SAME_QUEUE = _("message %(id)s is in queue %(queue)r; name another")

    # Poison records of the outbox
    EVENT_QUEUE = _("it goes back to the outbox, for topic %(topic)s; name no queue")
    EVENT_THERE = _("the outbox has a message with its id %(id)s")
    BROKER_MISSING = _(
        "there is no broker %(broker)r any more; add it to DEADLETTER['BROKERS'], or remove the "
        "record"
    )

    # Poison records of instances
    INSTANCE_GONE = _("its instance %(instance)s no longer exists")
    INSTANCE_QUEUE = _(
        "it drives instance %(instance)s, whose messages stay in one queue, in order"
    )
    INSTANCE_CONTINUED = _("instance %(instance)s has continued as execution %(execution)s")
    INSTANCE_COMPLETED = _("instance %(instance)s has completed without it")
    INSTANCE_FAILED = _("instance %(instance)s failed for another reason: %(error)s")
    INSTANCE_FAILED_BY = _(
        "instance %(instance)s failed for another reason: %(error)s (retry message "
        "%(failed_by)s first, or both together)"
    )
    INSTANCE_BEING_TOLD = _(
        "instance %(instance)s is handling the failure of %(what)s now; try again"
    )
    INSTANCE_HANDLED = _("instance %(instance)s has handled the failure of %(what)s and continued")
    PARENT_CONTINUED = _(
        "%(parent)s, the parent of %(instance)s, has continued as execution %(execution)s"
    )
    PARENT_COMPLETED = _("%(parent)s, the parent of %(instance)s, has completed without it")
    PARENT_FAILED = _(
        "%(parent)s, the parent of %(instance)s, failed for another reason: %(error)s"
    )
    PARENT_FAILED_BY = _(
        "%(parent)s, the parent of %(instance)s, failed for another reason: %(error)s (retry "
        "message %(failed_by)s first, or both together)"
    )

    # Imported messages
    IMPORT_QUEUE_MISSING = _("queue: there is no queue %(queue)r; create it or name another")
    IMPORT_KEY_TAKEN = _("key: %(key)s is the key of message %(id)s, which is not finished")

    # Failure groups
    GROUP_IS = _("group %(group)s is %(state)s already")
    GROUP_RESOLVED = _("group %(group)s is resolved; reopen it first")
    GROUP_OPEN = _("group %(group)s is %(state)s; there is nothing to reopen")
    GROUP_OWNED = _("%(owner)s is the owner of group %(group)s already")
    GROUP_UNOWNED = _("group %(group)s has no owner")
    GROUP_TICKET = _("the ticket of group %(group)s is this one already")
    GROUP_NO_TICKET = _("group %(group)s has no ticket")
    GROUP_MERGED = _("group %(group)s was merged into %(main)s; split it off first")
    GROUP_MERGED_NOW = _("group %(group)s was merged into %(main)s meanwhile; try again")
    GROUP_NOT_MERGED = _("group %(group)s is merged into no other; there is nothing to split off")
    GROUP_FULL = _("group %(main)s cannot hold more than %(n)s merged groups")


class Refusal(str):
    """One refusal: the English sentence, the `reason` behind it and its parameters."""

    __slots__ = ("params", "reason")

    reason: RefusalReason
    params: dict[str, Any]

    def __new__(cls, reason: RefusalReason, **params: Any) -> Refusal:
        refusal = super().__new__(cls, reason.value % params)
        refusal.reason = reason
        refusal.params = params
        return refusal

    def __getnewargs_ex__(self) -> tuple[tuple[RefusalReason], dict[str, Any]]:
        return (self.reason,), self.params

    @property
    def label(self) -> str:
        """Return the sentence in the active language, with its parameters safe for a page."""
        shown = {name: _shown(value) for name, value in self.params.items()}
        return gettext(self.reason.value) % shown


def _shown(value: Any) -> Any:
    label = getattr(value, "label", None)
    if isinstance(label, (str, Promise)):  # a member of an enumeration such as State
        return str(label)
    return page_text(value, limit=200) if isinstance(value, str) else value
