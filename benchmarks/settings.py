"""The demonstration site's settings with the handlers that are measured, and the app's defaults."""

from __future__ import annotations

import os

# What is measured says where it is; the harness starts several databases.
if url := os.environ.get("BENCH_URL"):
    os.environ["DATABASE_URL"] = url if "://" in url else f"sqlite:///{url}"

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]
DEADLETTER: dict[str, object] = {}
