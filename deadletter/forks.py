"""Fork hooks on platforms that fork. Windows has no fork, and no such hooks."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Whether `run_worker --processes` can start processes here.
CAN_FORK = hasattr(os, "fork")


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Call these functions around every fork, where the platform has forks."""
    hooks = {
        "before": before,
        "after_in_parent": after_in_parent,
        "after_in_child": after_in_child,
    }
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{when: call for when, call in hooks.items() if call is not None})
