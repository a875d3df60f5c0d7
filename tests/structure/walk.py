"""
The walk of one message: send, claim, run, fail, quarantine, page, retry.

Runs the walk in this process on a new SQLite file, and notes each function of the package that is
called on the way. What happens once in a process (URLs, statements and templates are read, a worker
starts) is not part of it: another message goes the same way before. Nor are the threads that look
after the worker, and methods that Python calls by itself, such as `__len__`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Code that is not called by its name: module bodies, comprehensions, lambdas, special methods.
NAMELESS = re.compile(r"^<|^__\w+__$")


class Noted:
    """The functions that were called while `on` was set."""

    def __init__(self) -> None:
        self.on = False
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(PREFIX) or NAMELESS.match(code.co_name):
            return
        if threading.current_thread().name in ASIDE:
            return
        self.functions.add((file.removeprefix(PREFIX), code.co_qualname))

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


PREFIX = f"{Path.cwd() / 'deadletter'}{os.sep}"
#: Threads that look after the worker, not after a message.
ASIDE = {"deadletter-housekeeper", "deadletter-listener"}


def walk() -> Noted:
    """Walk one message through the queue and return what was called."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/walk.sqlite3"
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        return _walk()


def _walk() -> Noted:
    from django.contrib.auth.models import User
    from django.test import Client
    from django.test.utils import setup_test_environment
    from django.urls import reverse

    from deadletter import handler, send
    from deadletter.models import Message, PoisonRecord, Queue

    setup_test_environment()
    Queue.objects.create(name="walk", max_attempts=2, cooldown=0)
    client = Client()
    client.force_login(User.objects.create_superuser("walker"))

    @handler("walk.fails")
    def fails(message: Any) -> None:
        raise ValueError("it never succeeds")

    noted = Noted()
    for is_noted in (False, True):
        noted.on = is_noted
        sys.setprofile(noted)
        send("walk.fails", {"step": 1}, queue="walk")
        sys.setprofile(None)
        _work(noted)
        record = PoisonRecord.objects.get()
        pages = [
            reverse(f"admin:deadletter_poisonrecord_{page}", args=[record.pk])
            for page in ("change", "retry")
        ]
        sys.setprofile(noted)
        answers = [*map(client.get, pages), client.post(pages[1])]
        sys.setprofile(None)
        assert [answer.status_code for answer in answers] == [200, 200, 302]
        Message.objects.get(attempts=0).delete()
    return noted


def _work(noted: Noted) -> None:
    """Run a worker until the message is dead, and note what its threads do."""
    from django.core.management import call_command

    threading.setprofile(noted)
    try:
        call_command("run_worker", queues="walk", drain=True, concurrency=1, verbosity=0)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        threading.setprofile(None)


if __name__ == "__main__":
    found = walk()
    if "-v" in sys.argv:
        for file, function in sorted(found.functions):
            print(file, function, flush=True)
    print(f"{len(found.functions)} functions in {len(found.files)} files", flush=True)
    os._exit(0)
