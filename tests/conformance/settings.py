"""Settings under which the tests of others run: the demonstration site's, with their tasks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from project.settings import *  # noqa: F403
from project.settings import DATABASES, INSTALLED_APPS, LOGGING

SECRET_KEY = "of the tests"

# As Django's own runner does: the package of the tests is an installed app.
INSTALLED_APPS = [*INSTALLED_APPS, "tasks"]
if os.environ["CONFORMANCE_LIBRARY"] == "django_tasks" and "django_tasks" not in INSTALLED_APPS:
    INSTALLED_APPS.append("django_tasks")

# The backends that the tests were written for never run a task again.
DEADLETTER = {"QUEUES": {name: {"max_attempts": 1} for name in ("default", "queue-1", "queue_1")}}

# Coroutines that call the ORM do so in a thread of their own, which cannot share :memory:.
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    directory = tempfile.TemporaryDirectory(prefix="deadletter-conformance-")
    DATABASES["default"]["TEST"] = {"NAME": str(Path(directory.name, "test.sqlite3"))}

# The tests look at what is logged, and some remove handlers; a person reads the report.
LOGGING = {
    **LOGGING,
    "handlers": {"nowhere": {"class": "logging.NullHandler"}},
    "loggers": {},
    "root": {"handlers": ["nowhere"]},
}
