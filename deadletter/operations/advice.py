"""Advice before a retry: what has changed since the messages died, and what speaks against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import clock
from ..lifecycle.internal_queue import PREFIX
from ..models import Breaker, GroupState, PoisonRecord, Queue, WorkerProcess, primary_alias
from ..patterns import ServedQueues
from ..text import page_text
from .acts import as_ids
from .breakers import state_of
from .failure_groups import FailureGroupRow, as_rows, find_main, read_releases
from .group_timeline import list_group_acts

#: Records that are read, and workers, and names or releases that a sentence lists.
_RECORDS, _WORKERS, _LISTED = 900, 500, 5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One sentence in the active language."""

    #: "release", "resolved", "no_worker", "unknown_name", "unserved_queue", "paused_queue",
    #: "breaker" or "died_again".
    kind: str
    text: str
    #: True if it speaks against a retry now.
    is_warning: bool


def retry_advice(
    fingerprint: str | None = None,
    *,
    records: int | Iterable[int] = (),
    using: str | None = None,
) -> list[Advice]:
    """
    Return what to know before the records of a group, or the given poison records, are retried.

    Of many given records, the first 900 are read.
    """
    alias = primary_alias(using)
    subject = _of_records(as_ids(records)[:_RECORDS], alias)
    if fingerprint is not None:
        subject = _of_group(fingerprint, alias)
    if subject is None:
        return []
    workers = _workers(alias)
    if not workers:
        return [_warning("no_worker", _("No worker is alive."))]
    found = [_unknown_names(subject.names, workers), _unserved(subject.queues, workers)]
    found += [_paused(subject.queues, alias), _breakers(subject.names, alias)]
    knowing = [one for one in workers if one.names & subject.names]
    found.append(_releases(subject, knowing))
    found += [_resolved(group, workers) for group in subject.groups]
    found.append(_last_retry(subject, alias))
    return [one for one in found if one is not None]


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What shall be retried."""

    names: frozenset[str]
    queues: frozenset[str]
    #: The releases that it failed in; empty: unknown.
    releases: tuple[str, ...]
    #: True if it also failed without a release.
    is_partly_unknown: bool
    groups: tuple[FailureGroupRow, ...] = ()
    fingerprints: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Worker:
    release: str
    queues: object
    names: frozenset[str]


def _of_group(fingerprint: str, alias: str) -> _Subject | None:
    row = find_main(fingerprint, using=alias)
    if row is None:
        return None
    (group,) = as_rows([row], using=alias)
    rows = PoisonRecord.objects.using(alias).filter(fingerprint__in=group.fingerprints)
    facts = rows.order_by().values_list("name", "queue", "release")[:_RECORDS]
    found = set(facts)
    releases = read_releases(group.fingerprints, using=alias)
    named = sum(one.failures for one in releases)
    names = {name for name, _queue, _release in found} or {group.name}
    return _Subject(
        names=frozenset(name for name in names if not name.startswith(PREFIX)),
        queues=frozenset(queue for _name, queue, _release in found),
        releases=tuple(one.name for one in releases),
        is_partly_unknown=named < group.failures,
        groups=(group,),
        fingerprints=group.fingerprints,
    )


def _of_records(ids: Sequence[int], alias: str) -> _Subject | None:
    rows = PoisonRecord.objects.using(alias).filter(pk__in=ids)
    found = set(rows.order_by().values_list("name", "queue", "release", "fingerprint"))
    if not found:
        return None
    mains = {fingerprint: find_main(fingerprint, using=alias) for *_, fingerprint in found}
    groups = {row.fingerprint: row for row in mains.values() if row is not None}
    releases = sorted({release for _n, _q, release, _f in found if release})
    return _Subject(
        names=frozenset(name for name, *_ in found if not name.startswith(PREFIX)),
        queues=frozenset(queue for _n, queue, *_ in found),
        releases=tuple(releases),
        is_partly_unknown=any(not release for _n, _q, release, _f in found),
        groups=tuple(as_rows(list(groups.values()), using=alias)),
        fingerprints=tuple(sorted(mains)),
    )


def _workers(alias: str) -> list[_Worker]:
    rows = WorkerProcess.objects.using(alias).alive(clock.now(alias)).order_by("name")
    found = rows.values_list("release", "queues", "handlers")[:_WORKERS]
    return [_Worker(release, queues, _names(handlers)) for release, queues, handlers in found]


def _names(handlers: object) -> frozenset[str]:
    entries = handlers if isinstance(handlers, list) else []
    return frozenset(
        str(entry[1]) for entry in entries if isinstance(entry, list) and len(entry) >= 2
    )


def _unknown_names(names: Collection[str], workers: Sequence[_Worker]) -> Advice | None:
    known = {name for worker in workers for name in worker.names}
    unknown = sorted(set(names) - known)
    if not unknown:
        return None
    text = ngettext(
        "No live worker knows the name %(names)s.",
        "No live worker knows the names %(names)s.",
        len(unknown),
    )
    return _warning("unknown_name", text % {"names": _list(unknown)})


def _unserved(queues: Collection[str], workers: Sequence[_Worker]) -> Advice | None:
    served = ServedQueues([worker.queues for worker in workers])
    unserved = sorted(queue for queue in queues if queue not in served)
    if not unserved:
        return None
    text = ngettext(
        "No live worker serves the queue %(queues)s.",
        "No live worker serves the queues %(queues)s.",
        len(unserved),
    )
    return _warning("unserved_queue", text % {"queues": _list(unserved)})


def _paused(queues: Collection[str], alias: str) -> Advice | None:
    rows = Queue.objects.using(alias).filter(name__in=list(queues), paused=True)
    paused = sorted(rows.values_list("name", flat=True))
    if not paused:
        return None
    text = ngettext(
        "The queue %(queues)s is paused.", "The queues %(queues)s are paused.", len(paused)
    )
    return _warning("paused_queue", text % {"queues": _list(paused)})


def _breakers(names: Collection[str], alias: str) -> Advice | None:
    now = clock.now(alias)
    rows = Breaker.objects.using(alias).filter(name__in=list(names))
    held = sorted(row.name for row in rows if state_of(row, now) != "probe")
    if not held:
        return None
    text = ngettext(
        "A circuit breaker holds messages named %(names)s.",
        "Circuit breakers hold messages named %(names)s.",
        len(held),
    )
    return _warning("breaker", text % {"names": _list(held)})


def _releases(subject: _Subject, workers: Sequence[_Worker]) -> Advice | None:
    """Compare the releases that it failed in with those that its workers run."""
    running = Counter(worker.release for worker in workers if worker.release)
    if not subject.releases or not running:
        return None
    failed = set(subject.releases)
    others = sorted(set(running) - failed)
    count = sum(running[name] for name in others)
    values = {
        "failed": _list(subject.releases),
        "running": _list(others),
        "count": count,
        "workers": len(workers),
    }
    if not others:
        text = _("Failed in %(failed)s; the workers still run that.")
    elif subject.is_partly_unknown:
        text = _(
            "Failed in %(failed)s and others; %(count)s of %(workers)s workers run %(running)s."
        )
    else:
        text = _("Failed only in %(failed)s; %(count)s of %(workers)s workers run %(running)s.")
    # Part of the messages would be handled by the release that they died in.
    is_warning = any(name in failed for name in running)
    return Advice(kind="release", text=text % values, is_warning=is_warning)


def _resolved(group: FailureGroupRow, workers: Sequence[_Worker]) -> Advice | None:
    if group.state != GroupState.RESOLVED or not group.resolved_in:
        return None
    count = sum(worker.release == group.resolved_in for worker in workers)
    values = {
        "release": page_text(group.resolved_in),
        "count": count,
        "workers": len(workers),
    }
    if not count:
        text = _("Resolved in %(release)s, which no live worker runs.")
        return _warning("resolved", text % values)
    text = _("Resolved in %(release)s, which %(count)s of %(workers)s workers run.")
    return Advice(kind="resolved", text=text % values, is_warning=count < len(workers))


def _last_retry(subject: _Subject, alias: str) -> Advice | None:
    """Return how the last retry of the group ended, if messages died again."""
    if len(subject.groups) != 1:
        return None
    acts = list_group_acts(subject.fingerprints, limit=5, using=alias)
    retries = [act for act in acts if act.outcomes is not None]
    if not retries or not retries[0].outcomes or not retries[0].outcomes.died_same:
        return None
    last = retries[0]
    text = _("Of the last retry, %(died)s of %(retried)s died again of the same cause.")
    values = {"died": retries[0].outcomes.died_same, "retried": last.messages}
    return _warning("died_again", text % values)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(page_text(name, limit=100) for name in names[:_LISTED])
    return f"{shown}, …" if len(names) > _LISTED else shown


def _warning(kind: str, text: str) -> Advice:
    return Advice(kind=kind, text=text, is_warning=True)
