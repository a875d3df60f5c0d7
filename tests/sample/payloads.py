"""Classes that describe payloads, and payloads that match and do not match them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypedDict

from deadletter.payload_types import PayloadType


@dataclass
class Item:
    quantity: int


@dataclass
class OrderShipped:
    order: int
    items: list[Item] = field(default_factory=list)
    token: str = ""
    on: date | None = None

    def __post_init__(self) -> None:
        if self.order == 13:
            raise KeyError("unlucky")


class OrderDict(TypedDict):
    order: int
    on: date


TYPED = PayloadType(OrderShipped)
GOOD: dict[str, Any] = {"order": 7, "items": [{"quantity": 2}], "on": "2026-01-31"}
BAD: dict[str, Any] = {"order": 7, "items": [{"quantity": 1}, {"quantity": 2}, {"quantity": "x"}]}
PLACE = "payload.items[2].quantity: expected int, got str"
