"""
Settings of the demonstration site, read from the environment:

DATABASE_URL   postgresql://user:password@host/name or sqlite:////path; unset: db.sqlite3, here
SECRET_KEY     unset: a new one in every process
DEBUG          off unless 1
ALLOWED_HOSTS  comma-separated; unset: this machine only
LOG_LEVEL      of the deadletter loggers; unset: INFO
HTTPS          1: the site is served by TLS only (cookies, redirects, HSTS)
BEHIND_PROXY   1: a proxy terminates TLS and always sets X-Forwarded-Proto
DEMO_BROKER_URL  amqp://user:password@host or redis://…: a broker for the outbox; unset: none
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import django
import environ

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)

# A random key keeps secrets out of the repository and needs no set-up. Sessions then end with the
# process, and several processes do not share them: set SECRET_KEY to change that.
SECRET_KEY = env.str("SECRET_KEY", default="") or secrets.token_urlsafe(50)

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# Off by default: `make demo` uses no TLS. With it, `manage.py check --deploy` reports nothing.
HTTPS = env.bool("HTTPS", default=False)
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if env.bool("BEHIND_PROXY", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "deadletter",
    "project",
]
if django.VERSION < (6, 0):
    # Django Tasks came with Django 6; before, this package brings them.
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

SQLITE_OPTIONS: dict[str, Any] = {
    # Take the write lock at BEGIN: a transaction that reads first and writes later fails with
    # "database is locked" at once if another writer came in between, whatever the timeout.
    "transaction_mode": "IMMEDIATE",
    # Seconds to wait for the write lock.
    "timeout": 20,
    # WAL: readers do not block the writer. FULL: in WAL mode NORMAL may lose the last commits when
    # the power fails, and a message whose `send` was committed must not be lost.
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
}


def _database(url: str) -> dict[str, Any]:
    database: dict[str, Any] = (
        env.db_url_config(url)
        if url
        else {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}
    )
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["OPTIONS"] = {**SQLITE_OPTIONS, **database.get("OPTIONS", {})}
    return database


DATABASES = {"default": _database(env.str("DATABASE_URL", default=""))}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "{asctime} {levelname:7} {message}", "style": "{", "datefmt": "%H:%M:%S"}
    },
    "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "deadletter": {"handlers": ["lines"], "level": env.str("LOG_LEVEL", default="INFO")},
        # Django's own console handler is silent when DEBUG is off.
        "django.request": {"handlers": ["lines"], "level": "ERROR", "propagate": False},
    },
}

# Tasks (project/tasks.py) are messages: same queues, same worker, same pages.
TASKS = {"default": {"BACKEND": "deadletter.tasks.DeadletterBackend", "QUEUES": []}}

# Delays are short, so that visitors of the demonstration see retries and poison within a minute.
# The defaults of the app (30 s doubling to an hour) are meant for production.
DEADLETTER: dict[str, Any] = {
    "QUEUES": {
        "default": {"max_attempts": 5, "backoff_base": 1, "backoff_cap": 10},
        "mail": {"max_attempts": 3, "backoff_base": 1, "backoff_cap": 5},
        "orders": {"max_attempts": 3, "backoff_base": 1, "backoff_cap": 5},
        # Dead messages of this queue move to a dead queue, which is paused: nothing runs there.
        "payments": {"max_attempts": 2, "backoff_base": 1, "dead_queue": "payments.dead"},
        "payments.dead": {"paused": True},
    },
}
if _broker := env.str("DEMO_BROKER_URL", default=""):
    _options: dict[str, Any] = {"url": _broker, "max_attempts": 2, "backoff_base": 1}
    if _broker.startswith("amqp"):
        # For project/consumer.py.
        _options["declare"] = {"queues": {"demo": ["demo.#"]}}
    DEADLETTER["BROKERS"] = {"default": _options}
