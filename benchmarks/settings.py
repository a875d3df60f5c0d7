"""A worker's settings: the handlers that are measured, the app's defaults, and no admin."""

from __future__ import annotations

import os

# What is measured says where it is; the harness starts several databases.
if url := os.environ.get("BENCH_URL"):
    os.environ["DATABASE_URL"] = url if "://" in url else f"sqlite:///{url}"

from project.settings import *  # noqa: F403

# As few as the peers that run on Django are given: each app is memory.
INSTALLED_APPS = ["django.contrib.contenttypes", "deadletter", "benchmarks"]
ROOT_URLCONF = "deadletter.urls"
DEADLETTER: dict[str, object] = {}
