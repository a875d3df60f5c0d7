"""A site with nothing but the outbox of another package; BENCH_APP says which."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import environ

_app = os.environ["BENCH_APP"]
_broker = urlsplit(os.environ["BENCH_BROKER_URL"])

SECRET_KEY = "measured"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", _app]
DATABASES = {"default": environ.Env().db_url_config(os.environ["BENCH_URL"])}
DATABASES["default"]["CONN_MAX_AGE"] = None
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "WARNING"}}
RELIABLE_OUTBOX = {
    "BATCH_SIZE": 500,
    "DESTINATIONS": {
        "default": {
            "BACKEND": "benchmarks.peers.counted_stream.CountedStream",
            "OPTIONS": {"url": os.environ["BENCH_BROKER_URL"], "stream": "{name}"},
        }
    },
}
DJANGO_OUTBOX_PATTERN = {
    "DEFAULT_STOMP_HOST_AND_PORTS": [
        ("127.0.0.1", int(os.environ.get("BENCH_STOMP_PORT") or 61613))
    ],
    "DEFAULT_STOMP_USERNAME": _broker.username or "",
    "DEFAULT_STOMP_PASSCODE": _broker.password or "",
    "DEFAULT_STOMP_VHOST": "/",
}
