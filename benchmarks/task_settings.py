"""A worker's settings for tasks; BENCH_RESULTS_KEPT says for how long results are kept."""

from __future__ import annotations

import os

from .settings import *  # noqa: F403

TASKS = {"default": {"BACKEND": "deadletter.tasks.DeadletterBackend"}}
DEADLETTER = {"RESULTS_KEPT": os.environ["BENCH_RESULTS_KEPT"]}
