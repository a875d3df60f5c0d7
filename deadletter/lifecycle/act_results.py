"""The result of an act that a person asks for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ActResult:
    """What became of each id: done, missing, or refused with the reason (a `Refusal`)."""

    done: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    #: The audit entry; 0 if the act changed and refused nothing, or if its caller audits it.
    entry_id: int = 0

    @property
    def retried(self) -> list[int]:
        """The ids that were retried: `done` under its public name for a retry."""
        return self.done

    @property
    def removed(self) -> list[int]:
        """The ids that were removed: `done` under its public name for a removal."""
        return self.done
