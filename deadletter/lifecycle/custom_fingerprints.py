"""
Fingerprints that the application gives to failures: a bounded number for each message name.

A text that differs from failure to failure would make a group of each. Beyond the bound failures
get the default fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ..conf import get_settings
from ..fingerprints import custom_fingerprint, fingerprint
from ..models import FailureGroup
from .transaction import Transaction

#: Seconds for which a name that has reached its bound is not read again.
_READ_AGAIN = 60.0
#: Groups of a name that are read.
_READ = 1_000


@dataclass(slots=True)
class _Known:
    """The fingerprints of one message name, and when they were read (monotonic clock)."""

    stored: frozenset[str]
    read: float
    #: Given out by this process, and when: their groups may not be stored yet.
    given: dict[str, float]

    def __len__(self) -> int:
        return len(self.stored | self.given.keys())

    def __contains__(self, group: str) -> bool:
        return group in self.stored or group in self.given


#: By database and message name.
_known: dict[tuple[str, str], _Known] = {}


def admit(tx: Transaction, name: str, text: str) -> str:
    """
    Return the fingerprint for a text of the application, or "" if the name has too many.

    Reads groups only for a fingerprint that this process has not seen. Other processes may give
    out some at the same time: the bound is exceeded by those of about a second.
    """
    group = custom_fingerprint(name, text)
    limit = get_settings().groups_limit
    known = _known.get((tx.using, name))
    if known is not None and group in known:
        return group
    is_full = known is not None and len(known) >= limit
    if known is None or not is_full or monotonic() - known.read > _READ_AGAIN:
        known = _known[tx.using, name] = _read(tx, name, known)
    if group in known:
        return group
    if len(known) >= limit:
        return ""
    known.given[group] = monotonic()
    return group


def forget() -> None:
    """Forget all fingerprints, for tests."""
    _known.clear()


def _read(tx: Transaction, name: str, before: _Known | None) -> _Known:
    rows = FailureGroup.objects.using(tx.using).filter(name=name).order_by("-last_failed_at", "-id")
    stored = frozenset(
        group
        for group, exception, frame in rows.values_list("fingerprint", "exception", "frame")[:_READ]
        if group != fingerprint(name, exception, frame) and not _is_cut(exception, frame)
    )
    now = monotonic()
    given = before.given if before is not None else {}
    recent = {group: at for group, at in given.items() if now - at <= _READ_AGAIN}
    return _Known(stored, now, recent)


def _is_cut(exception: str, frame: str) -> bool:
    """Return whether the columns may be too short for what a default fingerprint is made of."""
    return len(exception) >= 200 or len(frame) >= 300
