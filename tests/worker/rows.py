"""The messages and poison records that are stored now."""

from __future__ import annotations

from django.db.models import Q

from deadletter import clock
from deadletter.models import Message


def rows() -> dict[int, int]:
    """Return the attempts of every message, by id."""
    return dict(Message.objects.order_by("pk").values_list("pk", "attempts"))


def attempts(id: int) -> int:
    return Message.objects.values_list("attempts", flat=True).get(pk=id)


def leases() -> list[int]:
    """Return the messages under a live lease."""
    live = Q(lease_token__isnull=False, available_at__gt=clock.now("default"))
    return list(Message.objects.filter(live).order_by("pk").values_list("pk", flat=True))
