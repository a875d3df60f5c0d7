"""The app configuration of the demonstration site."""

from __future__ import annotations

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    # An installed app, so that Django finds its `handlers` module and its `demo` command.
    name = "project"
    verbose_name = "Demonstration site"
