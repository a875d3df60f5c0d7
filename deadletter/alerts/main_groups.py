"""
The failure groups behind alerts: which group speaks for a fingerprint, and which are quiet.

A merged group speaks as its main group. A muted group is quiet, and so is a resolved one until it
comes back. What died before a person acted on a group is known: it is not reported later.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from ..models import Alert, FailureGroup, GroupState

#: Rules whose subject is the fingerprint of a group.
RULES = (Alert.Rule.NEW_GROUP.value, Alert.Rule.REGRESSED_GROUP.value)
#: The key in the detail of a closed alert for what ended it, if that was an act on its group: a
#: state, or "merged".
CLOSED_AS = "closed_as"
MERGED = "merged"
#: States, and "merged", about which people are told nothing.
QUIET = (GroupState.MUTED.value, GroupState.RESOLVED.value, MERGED)
#: Groups whose dead letters are counted as one group: as many as people can merge.
COUNTED_MEMBERS = 101
#: Fingerprints in one query.
_PIECE = 1_000


class Standing(NamedTuple):
    """A group as alerts see it; `state` is "" for one that was not counted yet."""

    main: str
    state: str = ""
    state_at: datetime | None = None
    #: A person set the state; else a failure, or time.
    by_person: bool = False
    #: The queue of its latest failure.
    queue: str = ""

    @property
    def is_quiet(self) -> bool:
        return self.state in QUIET

    @property
    def known_until(self) -> datetime | None:
        """Return when a person last acted on the group; None: nobody did."""
        return self.state_at if self.by_person else None


class Standings:
    """The groups that speak for fingerprints, each read once in a decision."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._known: dict[str, Standing] = {}

    def read(self, fingerprints: Collection[str]) -> dict[str, Standing]:
        """Return the standing of the group that speaks for each fingerprint."""
        missing = set(fingerprints) - self._known.keys()
        rows = _read(self._using, missing)
        rows |= _read(self._using, {row.main for row in rows.values()} - rows.keys())
        for fingerprint in missing:
            row = rows.get(fingerprint, Standing(fingerprint))
            self._known[fingerprint] = rows.get(row.main, row)
        return {fingerprint: self._known[fingerprint] for fingerprint in fingerprints}


def _read(using: str, fingerprints: Collection[str]) -> dict[str, Standing]:
    wanted = sorted(fingerprints)
    found = {}
    for start in range(0, len(wanted), _PIECE):
        rows = FailureGroup.objects.using(using).filter(
            fingerprint__in=wanted[start : start + _PIECE]
        )
        columns = ("fingerprint", "merged_into", "state", "state_at", "state_by", "queue")
        for fingerprint, main, state, at, by, queue in rows.values_list(*columns):
            found[fingerprint] = Standing(main or fingerprint, state, at, bool(by), queue)
    return found


def read_members(using: str, mains: Collection[str]) -> dict[str, list[str]]:
    """Return the fingerprints that each main group speaks for, its own first."""
    found = {main: [main] for main in mains}
    wanted = sorted(mains)
    for start in range(0, len(wanted), _PIECE):
        rows = FailureGroup.objects.using(using).filter(
            merged_into__in=wanted[start : start + _PIECE]
        )
        for main, fingerprint in rows.values_list("merged_into", "fingerprint"):
            found[main].append(fingerprint)
    return found


def members_of(using: str, main: str) -> list[str]:
    """Return the group and the groups merged into it of which alerts count the dead letters."""
    rows = FailureGroup.objects.using(using).filter(merged_into=main)
    newest = rows.order_by("-last_failed_at", "-id").values_list("fingerprint", flat=True)
    return [main, *newest[: COUNTED_MEMBERS - 1]]
