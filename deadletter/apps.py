"""The app configuration: system checks, queues declared in settings, signals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DeadletterConfig(AppConfig):
    name = "deadletter"
    label = "deadletter"
    verbose_name = _("Dead letters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import (
            checks,  # noqa: F401 - registers them
            payload_types,
            signals,
        )
        from .lifecycle import enqueue, policy_edits, results  # noqa: F401 - hears of edited queues
        from .tasks import frameworks

        post_migrate.connect(_create_declared_queues, sender=self)
        # After the queues: receivers are called in the order in which they were connected.
        post_migrate.connect(_create_declared_schedules, sender=self)
        enqueue.on_names_sent = _check_names
        payload_types.register_checker("task", _check_arguments)
        if frameworks.is_available():
            from .tasks import execution

            results.on_tasks_completed = execution.tell_completed
            results.wants_completed_tasks = execution.wants_completed
            signals.message_poisoned.connect(execution.tell_poisoned)


def _create_declared_queues(**kwargs: Any) -> None:
    """Create the queues of the settings after `migrate` and `flush`."""
    # Imported when it is needed: a web process has no other use for it when it starts.
    from .operations.declared_queues import create_declared_queues

    create_declared_queues(**kwargs)


def _create_declared_schedules(**kwargs: Any) -> None:
    """Create the schedules of the settings and the code after `migrate` and `flush`."""
    # Imported when it is needed, as above.
    from .schedules import create_declared_schedules

    create_declared_schedules(**kwargs)


def _check_arguments(path: str, payload: Any) -> None:
    """Check the payload that a person gives a task."""
    # Imported on use: a web process has no other use for it when it starts.
    from .tasks.lookup import check_payload

    check_payload(path, payload)


def _check_names(names: Iterable[str]) -> None:
    """Warn about names that have no handler. Called only while DEBUG is on."""
    # Imported on use: a web process has no other use for handlers.
    from .worker import unknown_names

    unknown_names.check(names)
