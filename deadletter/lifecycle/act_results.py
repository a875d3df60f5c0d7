"""The result of an act that a person asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models import PoisonRecord


@dataclass(frozen=True)
class ActResult:
    """What became of each id: done, missing, or refused with the reason (a `Refusal`)."""

    done: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    #: The audit entry; 0 if the act changed and refused nothing, or if its caller writes the entry.
    entry_id: int = 0
    #: The poison records that were done, as they were, for the audit trail of one transaction.
    records: list[PoisonRecord] | None = field(default=None, repr=False, compare=False)

    @property
    def retried(self) -> list[int]:
        """The ids that were retried: `done` under its public name for a retry."""
        return self.done

    @property
    def removed(self) -> list[int]:
        """The ids that were removed: `done` under its public name for a removal."""
        return self.done

    def add(self, other: ActResult) -> None:
        """Add the ids of another part of the same act; its entry and records are not kept."""
        self.done.extend(other.done)
        self.missing.extend(other.missing)
        self.refused.update(other.refused)
