"""What a person can do to a message that waits: what it means, and when it is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ... import operations
from ...lifecycle.dead_queues import is_moved, read_original_death, source_queues
from ...models import Message, OnPoison, Queue, State, StreamPolicy, primary_alias
from ...text import page_text


@dataclass(frozen=True)
class Result:
    done: Sequence[int]
    missing: Sequence[int]
    refused: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class MessageAct:
    """`says` states what will happen to n messages, `refuses` why one would not be touched."""

    slug: str
    permission: str
    label: Any
    says: Callable[[Sequence[Message]], list[str]]
    refuses: Callable[[Message, str], str]
    verb: Callable[..., Result]
    button: Callable[[int], str]
    told: Callable[[int], str]
    why_required: bool = False
    danger: bool = False
    #: What may be chosen beside the reason: a keyword of `verb`, and what the page says of it.
    choice: tuple[str, Any] | None = None


def _never_in_state(message: Message, state: str) -> str:
    if state == State.ACTIVE:
        return gettext("A worker is handling it; wait for its lease to end.")
    return ""


# Retry what lies in a dead queue


def _retry_dead(ids: Sequence[int], *, by: str, why: str) -> Result:
    found = operations.retry_dead(ids, by, why=why)
    return Result(found.retried, found.missing, found.refused)


def _retry_dead_says(messages: Sequence[Message]) -> list[str]:
    """Say where they go, queue by queue."""
    alias = primary_alias()
    columns = ("death", "source_id", "origin", "queue_id", "failure_reason")
    ids = [message.pk for message in messages]
    rows = Message.objects.using(alias).filter(pk__in=ids).only(*columns)
    sources = source_queues(alias)
    targets: Counter[str] = Counter()
    for row in rows:
        burial, only = read_original_death(row), sources.get(row.queue_id, [])
        guess = only[0] if len(only) == 1 else "?"
        targets[(burial and burial.queue) or guess] += 1
    says = [
        ngettext(
            "%(n)s message goes back to queue %(queue)s, under the id that it had there.",
            "%(n)s messages go back to queue %(queue)s, under the ids that they had there.",
            n,
        )
        % {"n": n, "queue": page_text(queue, limit=200)}
        for queue, n in sorted(targets.items())
    ]
    kept = gettext(
        "Attempts are counted from 0 again. Payload, history, stages reached, key and place in the "
        "stream are kept."
    )
    return [*says, kept]


def _retry_dead_refuses(message: Message, state: str) -> str:
    if not is_moved(message):
        return gettext("It did not come from another queue, so there is no way back.")
    return _never_in_state(message, state)


# Retry now


def _retry_now(ids: Sequence[int], *, by: str, why: str, keep_attempts: bool = False) -> Result:
    found = operations.retry_now(ids, by=by, why=why, reset=not keep_attempts)
    return Result(found.retried, found.missing, found.refused)


def _retry_says(messages: Sequence[Message]) -> list[str]:
    n = len(messages)
    return [
        ngettext(
            "%(n)s message becomes due at once, instead of at the end of its delay.",
            "%(n)s messages become due at once, instead of at the end of their delays.",
            n,
        )
        % {"n": n},
        gettext(
            "Attempts are counted from 0 again, unless you choose to keep their number. Payload, "
            "history and place in the stream are kept."
        ),
    ]


def _retry_refuses(message: Message, state: str) -> str:
    if state == State.BLOCKED:
        return gettext("It is blocked: retry what holds its stream, or release it to let it pass.")
    if state != State.ACTIVE and not message.was_tried:
        return gettext("It is %(state)s and was never tried: there is nothing to retry.") % {
            "state": State(state).label
        }
    return _never_in_state(message, state)


# Release by name


def _release(ids: Sequence[int], *, by: str, why: str) -> Result:
    found = operations.release(ids, by=by, why=why)
    return Result(found.done, found.missing, found.refused)


def _release_says(messages: Sequence[Message]) -> list[str]:
    n = len(messages)
    return [
        ngettext(
            "%(n)s message may pass what waits or died in front of it in its stream.",
            "%(n)s messages may pass what waits or died in front of them in their streams.",
            n,
        )
        % {"n": n},
        gettext("Order is given up for it. What else waits in the stream goes on waiting."),
    ]


def _release_refuses(message: Message, state: str) -> str:
    if message.stream is None:
        return gettext("It belongs to no stream, so nothing holds it back.")
    return _never_in_state(message, state)


# Poison by hand


def _poison(ids: Sequence[int], *, by: str, why: str) -> Result:
    found = operations.poison(ids, by=by, why=why)
    return Result(found.done, found.missing, found.refused)


def _poison_says(messages: Sequence[Message]) -> list[str]:
    """Poison goes where its queue's policy sends it: say where, queue by queue."""
    queues: dict[str, tuple[Queue, int]] = {}
    for message in messages:
        name = message.queue.name
        queues[name] = (message.queue, queues.get(name, (None, 0))[1] + 1)
    says = [_poison_goes(queue, n) for queue, n in queues.values()]
    if any(m.stream is not None and _halts(m.queue) for m in messages):
        says.append(
            gettext(
                "Where the queue's stream policy is halt, the stream stands still from then on, "
                "until the poison record is retried or removed."
            )
        )
    if any(message.instance is not None for message in messages):
        says.append(
            gettext(
                "The instances they belong to are told: a flow may handle the failure of an "
                "activity; otherwise the instance fails of it."
            )
        )
    return says


def _halts(queue: Queue) -> bool:
    """Whether a death stops its stream: only a poison record can."""
    return queue.stream_policy == StreamPolicy.HALT and queue.on_poison == OnPoison.QUARANTINE


def _poison_goes(queue: Queue, n: int) -> str:
    values = {"n": n, "queue": queue.name, "dead": queue.dead_queue}
    if queue.on_poison == OnPoison.DISCARD:
        return (
            ngettext(
                "%(n)s message of queue %(queue)s is DISCARDED, as the policy of the queue says: "
                "it cannot be brought back.",
                "%(n)s messages of queue %(queue)s are DISCARDED, as the policy of the queue "
                "says: they cannot be brought back.",
                n,
            )
            % values
        )
    if queue.on_poison == OnPoison.DEAD_QUEUE:
        return (
            ngettext(
                "%(n)s message of queue %(queue)s is moved to the dead queue %(dead)s.",
                "%(n)s messages of queue %(queue)s are moved to the dead queue %(dead)s.",
                n,
            )
            % values
        )
    return (
        ngettext(
            "%(n)s message of queue %(queue)s becomes a poison record: it is not handled until "
            "somebody retries it.",
            "%(n)s messages of queue %(queue)s become poison records: they are not handled until "
            "somebody retries them.",
            n,
        )
        % values
    )


# Remove


def _remove(ids: Sequence[int], *, by: str, why: str) -> Result:
    found = operations.remove(ids, by=by, why=why)
    return Result(found.removed, found.missing, found.refused)


def _remove_says(messages: Sequence[Message]) -> list[str]:
    n = len(messages)
    says = [
        ngettext(
            "%(n)s message is removed for good: it will never be handled, and it cannot be "
            "brought back.",
            "%(n)s messages are removed for good: they will never be handled, and they cannot be "
            "brought back.",
            n,
        )
        % {"n": n}
    ]
    if any(message.stream is not None for message in messages):
        says.append(gettext("What waits behind it in its stream goes on."))
    return says


def _remove_refuses(message: Message, state: str) -> str:
    if message.instance is not None and state != State.ACTIVE:
        return gettext(
            "Instance %(id)s waits for it: poison it, so that its flow is told, or cancel the "
            "instance."
        ) % {"id": page_text(message.instance, limit=200)}
    return _never_in_state(message, state)


RETRY, REMOVE = "deadletter.retry_poison", "deadletter.remove_poison"

ACTS = {
    act.slug: act
    for act in (
        MessageAct(
            slug="retry-dead",
            permission=RETRY,
            label=_("Retry where it died"),
            says=_retry_dead_says,
            refuses=_retry_dead_refuses,
            verb=_retry_dead,
            button=lambda n: (
                ngettext(
                    "Retry %(n)s message where it died", "Retry %(n)s messages where they died", n
                )
                % {"n": n}
            ),
            told=lambda n: (
                ngettext(
                    "%(n)s message is back in its queue.",
                    "%(n)s messages are back in their queues.",
                    n,
                )
                % {"n": n}
            ),
        ),
        MessageAct(
            slug="retry-now",
            permission=RETRY,
            label=_("Retry now"),
            says=_retry_says,
            refuses=_retry_refuses,
            verb=_retry_now,
            button=lambda n: (
                ngettext("Retry %(n)s message now", "Retry %(n)s messages now", n) % {"n": n}
            ),
            told=lambda n: (
                ngettext("%(n)s message is due now.", "%(n)s messages are due now.", n) % {"n": n}
            ),
            choice=("keep_attempts", _("Keep the number of attempts")),
        ),
        MessageAct(
            slug="release",
            permission=RETRY,
            label=_("Release"),
            says=_release_says,
            refuses=_release_refuses,
            verb=_release,
            button=lambda n: (
                ngettext("Release %(n)s message", "Release %(n)s messages", n) % {"n": n}
            ),
            told=lambda n: (
                ngettext("%(n)s message was released.", "%(n)s messages were released.", n)
                % {"n": n}
            ),
        ),
        MessageAct(
            slug="poison",
            permission=REMOVE,
            label=_("Poison by hand"),
            says=_poison_says,
            refuses=_never_in_state,
            verb=_poison,
            button=lambda n: (
                ngettext("Poison %(n)s message", "Poison %(n)s messages", n) % {"n": n}
            ),
            told=lambda n: (
                ngettext("%(n)s message was poisoned.", "%(n)s messages were poisoned.", n)
                % {"n": n}
            ),
            why_required=True,
            danger=True,
        ),
        MessageAct(
            slug="remove",
            permission=REMOVE,
            label=_("Remove"),
            says=_remove_says,
            refuses=_remove_refuses,
            verb=_remove,
            button=lambda n: (
                ngettext("Remove %(n)s message", "Remove %(n)s messages", n) % {"n": n}
            ),
            told=lambda n: (
                ngettext("%(n)s message was removed.", "%(n)s messages were removed.", n) % {"n": n}
            ),
            danger=True,
        ),
    )
}
