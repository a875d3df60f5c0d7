"""The acts of people, all audited, and what they read. Used by the admin and the command line."""

from __future__ import annotations

from .acts import Total
from .audit import trail
from .brokers import BrokerReport, list_brokers
from .bulk import control_job, purge, remove_matching, retry_matching, start_job
from .dead_queues import DeadQueueFilter, find_moved, retry_dead, retry_dead_queue
from .export import export_poison
from .filters import MessageFilter, PoisonFilter
from .groups import Group, get_group, list_groups, matrix
from .health_checks import Health, health
from .imports import Import, import_messages
from .instances import (
    Cancellation,
    cancel_instance,
    events_of,
    get_instance,
    list_instances,
)
from .messages import (
    cancel,
    get_message,
    list_messages,
    poison,
    release,
    remove,
    retry_failed,
    retry_messages,
    retry_now,
    whereabouts,
)
from .outbox import (
    ArchiveFilter,
    Republished,
    list_pauses,
    list_published,
    pause_outbox,
    publish_again,
    publish_again_matching,
    resume_outbox,
)
from .poison_records import (
    Effect,
    Preview,
    Removal,
    Retrial,
    effect_of,
    get_poison,
    list_poison,
    preview,
    remove_poison,
    retry_poison,
)
from .queues import (
    POLICY,
    create_queue,
    delete_queue,
    matching_queues,
    pause,
    pause_matching,
    require_queue,
    resume,
    resume_matching,
    set_queue,
)
from .redaction import redact, redact_history
from .results import ResultFilter, get_result, list_results
from .statistics import Stats, poison_candidates, stats
from .streams import HeldStream, get_stream, list_streams

__all__ = [
    "POLICY",
    "ArchiveFilter",
    "BrokerReport",
    "Cancellation",
    "DeadQueueFilter",
    "Effect",
    "Group",
    "Health",
    "HeldStream",
    "Import",
    "MessageFilter",
    "PoisonFilter",
    "Preview",
    "Removal",
    "Republished",
    "ResultFilter",
    "Retrial",
    "Stats",
    "Total",
    "cancel",
    "cancel_instance",
    "control_job",
    "create_queue",
    "delete_queue",
    "effect_of",
    "events_of",
    "export_poison",
    "find_moved",
    "get_group",
    "get_instance",
    "get_message",
    "get_poison",
    "get_result",
    "get_stream",
    "health",
    "import_messages",
    "list_brokers",
    "list_groups",
    "list_instances",
    "list_messages",
    "list_pauses",
    "list_poison",
    "list_published",
    "list_results",
    "list_streams",
    "matching_queues",
    "matrix",
    "pause",
    "pause_matching",
    "pause_outbox",
    "poison",
    "poison_candidates",
    "preview",
    "publish_again",
    "publish_again_matching",
    "purge",
    "redact",
    "redact_history",
    "release",
    "remove",
    "remove_matching",
    "remove_poison",
    "require_queue",
    "resume",
    "resume_matching",
    "resume_outbox",
    "retry_dead",
    "retry_dead_queue",
    "retry_failed",
    "retry_matching",
    "retry_messages",
    "retry_now",
    "retry_poison",
    "set_queue",
    "start_job",
    "stats",
    "trail",
    "whereabouts",
]
