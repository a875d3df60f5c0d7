"""The demonstration site's settings, changed only where tests need it."""

from __future__ import annotations

import json
import os

from project.settings import *  # noqa: F403
from project.settings import DATABASES, DEADLETTER, INSTALLED_APPS, SQLITE_OPTIONS
from tests.mail import LOCMEM

SECRET_KEY = "of the tests"

# Handlers that misbehave, for the tests of the worker.
INSTALLED_APPS = [*INSTALLED_APPS, "tests.sample"]

# Hashing is slow on purpose; here only time would be lost.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Since Django 6.1 a site names its mailers; earlier versions do not read this setting.
MAILERS = {"default": {"BACKEND": LOCMEM}}

# The app's defaults, not the short delays of the demonstration.
DEADLETTER = {**DEADLETTER, "QUEUES": {"default": {}}}

# Workers that tests start as processes need not wait for seconds.
if "UNREGISTERED" in os.environ:
    DEADLETTER["UNREGISTERED_BASE"] = float(os.environ["UNREGISTERED"])

# For `using=` and `--database`. Costs nothing unless a test asks for it.
DATABASES = {**DATABASES, "second": {**DATABASES["default"], "TEST": {}}}
if "SECOND_DATABASE" in os.environ:
    DATABASES["second"]["NAME"] = os.environ["SECOND_DATABASE"]

for database in DATABASES.values():
    if database["ENGINE"] == "django.db.backends.sqlite3":
        # No waiting for the disk. Still safe when a test kills a process: only a crash of the whole
        # machine could lose what was written.
        database["OPTIONS"] = {
            **SQLITE_OPTIONS,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        }
    elif "POOL" in os.environ:
        # Django's own pool of connections, for workers that tests start as processes.
        database["OPTIONS"] = {
            **database.get("OPTIONS", {}),
            "pool": json.loads(os.environ["POOL"]),
        }
        database["CONN_MAX_AGE"] = 0

if "ROUTER" in os.environ:
    DATABASE_ROUTERS = [os.environ["ROUTER"]]
