"""An installation on a PostgreSQL server of its own, which tests may break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psycopg
from django.conf import settings

from tests.private_postgres import Server
from tests.processes import Workers

SEND = """
import django, json, sys
django.setup()
from deadletter import Outgoing, send_many
from deadletter.models import Queue
from datetime import timedelta
name, payload, count, attempts = json.loads(sys.argv[1])
Queue.objects.filter(name="default").update(max_attempts=attempts, cooldown=timedelta(seconds=0.2))
print(json.dumps(send_many([Outgoing(name, payload) for _ in range(count)])))
"""


class Site:
    """An installation on a server of its own, with workers beside it."""

    def __init__(self, server: Server, workers: Workers) -> None:
        self.server = server
        self.workers = workers

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=settings.BASE_DIR,
            env={
                **os.environ,
                "DATABASE_URL": self.server.url,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "LOG_LEVEL": "ERROR",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def send(self, name: str, payload: Any, count: int = 1, attempts: int = 5) -> list[int]:
        return json.loads(self.run("-c", SEND, json.dumps([name, payload, count, attempts])))

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url, autocommit=True) as database:
            return database.execute(statement).fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as database:
            database.execute(statement)

    def messages(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT id, attempts FROM deadletter_message ORDER BY id")


def drained(site: Site) -> bool:
    try:
        return not site.messages()
    except psycopg.OperationalError:
        return False
