"""Sample tasks: one that succeeds, one that reports progress, one that fails."""

from __future__ import annotations

import time
from typing import Any

from deadletter.tasks import task


@task(queue_name="mail", stream="user-{user_id}")
def welcome(user_id: int, name: str = "friend") -> dict[str, Any]:
    """Succeeds."""
    return {"sent": True, "subject": f"Welcome, {name}", "mailbox": user_id % 4}


@task(takes_context=True)
def build_report(context: Any, title: str, pages: int = 10) -> dict[str, Any]:
    """Reports how far it has got, a page at a time."""
    for page in range(1, pages + 1):
        time.sleep(0.2)
        context.report(page, pages, f"page {page} of {title}")
    return {"title": title, "pages": pages}


@task(queue_name="mail", max_attempts=2)
def charge(order: int, card_number: str) -> None:
    """Fails twice, and is dead then. Its card number is hidden on every page."""
    raise ValueError(f"the provider does not know order {order}")
