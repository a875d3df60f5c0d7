from __future__ import annotations

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    # Installed as an app so that its `handlers` module and its `demo` command are found.
    name = "project"
    verbose_name = "Demonstration site"
