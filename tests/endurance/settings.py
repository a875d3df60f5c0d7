"""Settings of the long runs: their handlers, the app's defaults, and no admin."""

from __future__ import annotations

from project.settings import *  # noqa: F403

INSTALLED_APPS = ["django.contrib.contenttypes", "deadletter", "tests.endurance"]
ROOT_URLCONF = "deadletter.urls"
DEADLETTER = {
    "QUEUES": {
        # What dies is removed again within the run, so that every table can stay small.
        "default": {
            "max_attempts": 3,
            "backoff_base": 1,
            "backoff_cap": 5,
            "poison_retention": 300,
        },
    },
}
