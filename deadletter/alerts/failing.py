"""Why was a notice not delivered? In words that hold no secret."""

from __future__ import annotations

from ..exceptions import DeadletterError
from ..text import notice_line


class DeliveryFailed(DeadletterError):
    """A channel did not take a notice; it is tried again."""

    def __init__(self, channel: str, problem: str) -> None:
        super().__init__(f"channel {notice_line(channel)}: {notice_line(problem, 500)}")
