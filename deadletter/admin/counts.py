"""How far the pages count: the limits of `operations.depths` in the admin."""

from __future__ import annotations

from ..operations.depths import Capped, attach_counts, capped, count_states

__all__ = ["IN_A_LIST", "ON_A_PAGE", "Capped", "attach_counts", "capped", "count_states"]

#: Rows counted per state: of each queue in a list of queues, and of the one queue on a page.
IN_A_LIST, ON_A_PAGE = 1_000, 10_000
