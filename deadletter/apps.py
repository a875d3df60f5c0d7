"""How the app introduces itself to Django."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DeadletterConfig(AppConfig):
    name = "deadletter"
    label = "deadletter"
    verbose_name = _("Dead letters")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers them
        from .declared import create_declared_queues
        from .lifecycle import policies  # noqa: F401 - hears of edited queues

        post_migrate.connect(create_declared_queues, sender=self)
