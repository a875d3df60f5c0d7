"""The app configuration: system checks, queues declared in settings, signals."""

from __future__ import annotations

from collections.abc import Iterable

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DeadletterConfig(AppConfig):
    name = "deadletter"
    label = "deadletter"
    verbose_name = _("Dead letters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers the checks
        from .declared import create_declared_queues
        from .lifecycle import enqueue, policy_edits  # noqa: F401 - connects its receiver

        post_migrate.connect(create_declared_queues, sender=self)
        enqueue.hear_names = _check_names


def _check_names(names: Iterable[str]) -> None:
    """Warn about names that have no handler. Called only while DEBUG is on."""
    # Imported on use: a web process has no other use for handlers.
    from .worker import unknown_names

    unknown_names.check(names)
