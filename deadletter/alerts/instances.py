"""Instances that wait for what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Count, Max, Min

from ..models import Alert, Instance
from .conditions import MOST, Look, Observation

#: Ids that a notice names.
NAMED = 5


def stuck(look: Look) -> Iterator[Observation]:
    """Find flows with instances that the sweep marked: an alert a flow, told again if it grows."""
    kind = Alert.Rule.STUCK_INSTANCE.value
    if not look.policy.of_kind(kind):
        return
    rows = Instance.objects.using(look.using).stuck()
    marks: dict[str, Any] = {
        "n": Count("pk"),
        "first": Min("stuck_since"),
        "last": Max("stuck_since"),
    }
    flows: Any = rows.order_by("name").values("name").annotate(**marks)
    for flow in flows[:MOST]:
        ids = rows.filter(name=flow["name"]).order_by("stuck_since", "id")
        yield Observation(
            rule=kind,
            subject=flow["name"],
            since=flow["first"],
            last_at=look.now,
            count=flow["n"],
            mark=flow["last"].timestamp(),
            detail={
                "name": flow["name"],
                "instances": list(ids.values_list("pk", flat=True)[:NAMED]),
            },
        )
