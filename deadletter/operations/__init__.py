"""The verbs of people; the admin and the command line use only these. Every act is audited."""

from __future__ import annotations

from .audit import trail
from .bulk import control_job, remove_matching, retry_matching, start_job
from .export import export_poison
from .filters import PoisonFilter
from .groups import Group, get_group, list_groups, matrix
from .health import Health, health
from .messages import poison, release, remove, retry_now
from .poison import Removal, Retrial, get_poison, list_poison, remove_poison, retry_poison
from .purge import purge
from .queues import create_queue, pause, resume, set_queue
from .redact import redact
from .stats import Stats, poison_candidates, stats
from .streams import HeldStream, get_stream, list_streams

__all__ = [
    "Group",
    "Health",
    "HeldStream",
    "PoisonFilter",
    "Removal",
    "Retrial",
    "Stats",
    "control_job",
    "create_queue",
    "export_poison",
    "get_group",
    "get_poison",
    "get_stream",
    "health",
    "list_groups",
    "list_poison",
    "list_streams",
    "matrix",
    "pause",
    "poison",
    "poison_candidates",
    "purge",
    "redact",
    "release",
    "remove",
    "remove_matching",
    "remove_poison",
    "resume",
    "retry_matching",
    "retry_now",
    "retry_poison",
    "set_queue",
    "start_job",
    "stats",
    "trail",
]
