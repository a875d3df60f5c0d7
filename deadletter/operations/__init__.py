"""The verbs of people; the admin and the command line use only these."""

from __future__ import annotations

from .health import Health, health
from .messages import poison, release, remove, retry_now
from .poison import Removal, Retrial, get_poison, list_poison, remove_poison, retry_poison
from .stats import Stats, poison_candidates, stats

__all__ = [
    "Health",
    "Removal",
    "Retrial",
    "Stats",
    "get_poison",
    "health",
    "list_poison",
    "poison",
    "poison_candidates",
    "release",
    "remove",
    "remove_poison",
    "retry_now",
    "retry_poison",
    "stats",
]
