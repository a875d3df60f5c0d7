"""Results: what became of tasks, and of messages whose handlers keep their results."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..models import Result, ResultOutcome, primary_alias
from ..models.result import ResultQuerySet
from ..patterns import is_pattern
from ..tasks.task_results import read_id
from ..text import short_repr
from .filter_values import check_text
from .queues import matching_queues


@dataclass(frozen=True, kw_only=True)
class ResultFilter:
    """
    A selection of results. Every field narrows it; None matches everything.

    `queue` is a name or a pattern (`tenant-a/*`). Only `name` has an index. Raises ValueError,
    naming the field, for a value that no result can have.
    """

    name: str | None = None
    queue: str | None = None
    outcome: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if value is not None:
                check_text(key, value)
        if self.outcome is not None and self.outcome not in ResultOutcome.values:
            known = ", ".join(ResultOutcome.values)
            raise ValueError(f"outcome: {short_repr(self.outcome)} is none of {known}")

    def results(self, using: str) -> ResultQuerySet:
        """
        Return the matching results without payloads.

        Those of a name: what ended last first. All: those of the newest messages first.
        """
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.queue is not None and is_pattern(self.queue):
            del given["queue"]
            given["queue__in"] = matching_queues(self.queue, using=using)
        rows = Result.objects.using(using).without_bodies().order_by("-pk")
        if (name := given.pop("name", None)) is not None:
            rows = rows.latest_of(name)
        return rows.filter(**given)


def list_results(
    name: str | None = None,
    *,
    queue: str | None = None,
    outcome: str | None = None,
    kind: str | None = None,
    limit: int | None = None,
    using: str | None = None,
) -> list[Result]:
    """List results without payloads and return values, sorted as `ResultFilter` says."""
    wanted = ResultFilter(name=name, queue=queue, outcome=outcome, kind=kind)
    return list(wanted.results(primary_alias(using))[:limit])


def get_result(message_id: int | str, *, using: str | None = None) -> Result | None:
    """Return the result of a message with all its columns; None: it has not ended or kept none."""
    id = read_id(message_id)
    rows = Result.objects.using(primary_alias(using))
    return None if id is None else rows.filter(pk=id).first()
