"""A site with nothing but Django's tasks; BENCH_BACKEND says in whose hands they are."""

from __future__ import annotations

import os

import environ

BACKENDS = {
    "django_tasks_db": "django_tasks_db.DatabaseBackend",
    "django_ox": "django_ox.backend.OxBackend",
}
_backend = os.environ["BENCH_BACKEND"]

SECRET_KEY = "measured"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", _backend]
DATABASES = {"default": environ.Env().db_url_config(os.environ["BENCH_URL"])}
# Both ask for connections that last.
DATABASES["default"]["CONN_MAX_AGE"] = None
TASKS = {"default": {"BACKEND": BACKENDS[_backend]}}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}
