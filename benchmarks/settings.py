"""The demonstration site's settings with the handlers that are measured."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]
DEADLETTER: dict[str, object] = {}
