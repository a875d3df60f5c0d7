"""What a retry or a removal of one record will do, in sentences; and what waits behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext, ngettext

from ...models import Kind, Message, PoisonRecord, Queue, primary_alias
from ...operations import Advice, effect_of
from ...text import page_text
from ..counts import Capped, capped
from ..render import refusal_text

#: Instances named in a sentence.
_NAMED = 5
#: Messages behind a record that are listed, and counted.
LISTED, COUNTED = 10, 1_000


def of_retry(record: PoisonRecord) -> list[str]:
    """Say what a retry of one record would do now."""
    said = [
        gettext(
            "Message %(id)s (%(name)s) goes back into its queue, %(queue)s, under the same id; "
            "the poison record disappears."
        )
        % _names(record),
        gettext("Its attempts start again at 0. Its stages, history and headers are kept."),
        *(_stream_after_retry(record) if record.instance is None else _reopens(record)),
    ]
    if record.poison_count > 1:
        text = ngettext(
            "It has died %(n)s time already.",
            "It has died %(n)s times already.",
            record.poison_count,
        )
        said.append(text % {"n": record.poison_count})
    return said


def of_remove(record: PoisonRecord) -> list[str]:
    """Say what a removal of one record would do now."""
    said = [
        gettext(
            "Message %(id)s (%(name)s) of queue %(queue)s is removed for good, with its payload "
            "and its history. It will never be handled, and this cannot be undone."
        )
        % _names(record)
    ]
    if record.instance is not None:
        text = gettext("Instance %(id)s stays as it is; nothing can reopen it any more.")
        return [*said, text % {"id": page_text(record.instance, limit=200)}]
    if record.stream is None:
        return [*said, gettext("It belongs to no stream: nothing waits for it.")]
    if record.halts:
        said.append(
            gettext(
                "The stream %(stream)s is halted by this record. Removing it lets the stream "
                "continue."
            )
            % {"stream": page_text(record.stream, limit=200)}
        )
        return [*said, *_waiting(record)]
    return [*said, gettext("Its stream has already continued without it.")]


def warnings(record: PoisonRecord) -> list[str]:
    """Name the reasons why a retry would be refused or would wait."""
    if record.kind == Kind.EVENT:  # it goes back to the outbox, which is no queue
        return _refusals(record)
    queue = Queue.objects.using(primary_alias()).filter(name=record.queue).first()
    if queue is None:
        text = gettext("The queue %(name)s does not exist any more: choose another one.")
        return [text % {"name": page_text(record.queue, limit=200)}]
    found = []
    if queue.paused:
        text = gettext("The queue %(name)s is paused: the message waits until it is resumed.")
        found.append(text % {"name": queue.name})
    if record.key is not None:
        same = Message.objects.using(primary_alias()).filter(queue=queue, key=record.key)
        if same.values("pk")[:1]:
            text = gettext(
                "An unfinished message with the same key, %(key)s, is in the queue: until it is "
                "done, the retry is refused."
            )
            found.append(text % {"key": page_text(record.key, limit=200)})
    return [*found, *_refusals(record)]


#: Advice that `warnings` gives in more words, for the queue of one record.
_SAID = ("paused_queue",)


def advice(found: Iterable[Advice]) -> tuple[list[str], list[str]]:
    """Return what speaks for a retry now, or neither for nor against it, and what against it."""
    told = [one for one in found if one.kind not in _SAID]
    says = [one.text for one in told if not one.is_warning]
    return says, [one.text for one in told if one.is_warning]


def _refusals(record: PoisonRecord) -> list[str]:
    refusal = effect_of(record, using=primary_alias()).refusal
    if not refusal:
        return []
    return [gettext("A retry would be refused now: %(why)s.") % {"why": refusal_text(refusal)}]


def on_instance(record: PoisonRecord) -> str:
    """Say what the poison did to its instance; "" for a message without one."""
    if record.instance is None:
        return ""
    found = effect_of(record, using=primary_alias())
    name = {"id": page_text(record.instance, limit=200)}
    if found.instance is None:
        return gettext("Its instance %(id)s does not exist any more.") % name
    if found.failed_it:
        return gettext("Instance %(id)s failed because of this message. A retry reopens it.") % name
    if found.refusal:
        return gettext("A retry is refused: %(why)s.") % {"why": refusal_text(found.refusal)}
    text = gettext(
        "Instance %(id)s still waits for this message; its flow has not received the failure yet."
    )
    return text % name


def _reopens(record: PoisonRecord) -> list[str]:
    found = effect_of(record, using=primary_alias())
    if not found.reopens:
        return []
    ids = ", ".join(page_text(id, limit=200) for id in found.reopens[:_NAMED])
    if (more := len(found.reopens) - _NAMED) > 0:
        ids = gettext("%(ids)s and %(n)s more") % {"ids": ids, "n": more}
    text = gettext(
        "The retry reopens these failed instances, which continue where they stopped: %(ids)s."
    )
    return [text % {"ids": ids}]


def _names(record: PoisonRecord) -> dict[str, object]:
    return {
        "id": record.message_id,
        "name": page_text(record.name, limit=200),
        "queue": page_text(record.queue, limit=200),
    }


def _stream_after_retry(record: PoisonRecord) -> list[str]:
    if record.stream is None:
        return [gettext("It belongs to no stream: no other message is affected.")]
    name = {"stream": page_text(record.stream, limit=200)}
    if record.halts:
        text = gettext(
            "The stream %(stream)s is halted by this record. The message returns to the head of "
            "the stream; the messages behind it follow when it has succeeded."
        )
        again = gettext("If it dies again, the stream is halted again.")
        return [text % name, *_waiting(record), again]
    text = gettext(
        "The stream %(stream)s has continued without it. The message returns to its original "
        "position, before the messages that still wait. Later messages may already have run."
    )
    return [text % name]


@dataclass(frozen=True)
class Following:
    """The messages that were sent to the stream after this one and are still there."""

    counted: Capped
    first: list[Message]


def following(record: PoisonRecord) -> Following:
    """Count and list them in the order they will run. No payloads, one index range."""
    queue = Queue.objects.using(primary_alias()).filter(name=record.queue).first()
    if record.stream is None or queue is None:
        return Following(Capped(0), [])
    rows = (
        Message.objects.using(primary_alias())
        .without_bodies()
        .filter(queue=queue, stream=record.stream)
    )
    behind = rows.filter(pk__gt=record.message_id)
    return Following(capped(behind.values("pk"), COUNTED), list(behind.order_by("pk")[:LISTED]))


def _waiting(record: PoisonRecord) -> list[str]:
    found = following(record).counted
    if not found.n:
        return [gettext("Nothing waits behind it.")]
    if found.more:
        return [gettext("More than %(n)s messages wait behind it.") % {"n": found.n}]
    text = ngettext("%(n)s message waits behind it.", "%(n)s messages wait behind it.", found.n)
    return [text % {"n": found.n}]
