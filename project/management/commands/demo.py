"""`make demo`: a site, a worker and something for both to do, until Ctrl-C."""

from __future__ import annotations

import secrets
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from project.processes import ProcessEnded, Processes, Stopped, processes, say
from project.traffic import (
    TOPICS,
    publish_opening,
    publish_something,
    send_opening,
    send_something,
)

HOST = "127.0.0.1"

#: Seconds between two messages of the trickle.
TRICKLE = 3.0
#: Seconds between two looks at whether the site answers.
LOOK = 0.1


class Command(BaseCommand):
    help = "Migrate, create an admin user, send sample messages, run a worker and the site."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="where the site listens")
        parser.add_argument(
            "--log",
            type=Path,
            default=Path(settings.BASE_DIR) / "demo.log",
            help="the file for what the worker and the site say (with -v 2: the terminal instead)",
        )

    def handle(self, *args: Any, port: int, log: Path, verbosity: int = 1, **options: Any) -> None:
        refuse_taken_port(port)
        try:
            with ExitStack() as stack:
                # Not to the terminal: the address and the password would be scrolled away.
                file = None if verbosity > 1 else stack.enter_context(log.open("w"))
                run(stack.enter_context(processes(file)), port, file)
        except Stopped:
            say("demo", "stopped")
        except ProcessEnded as error:
            raise CommandError(str(error)) from None


def refuse_taken_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise CommandError(
                f"cannot listen on {HOST}:{port} ({error}). Choose another port: "
                f"make demo PORT={port + 1 if port < 65535 else 8000}"
            ) from None


def run(group: Processes, port: int, log: IO[str] | None) -> None:
    say("demo", f"preparing the {connection.vendor} database {connection.settings_dict['NAME']}")
    call_command("migrate", interactive=False, verbosity=0)
    password = reset_admin()
    send_opening()
    group.wait(0)

    has_broker = "BROKERS" in settings.DEADLETTER
    if has_broker:
        group.start_shown("events", "project.consumer", *TOPICS)
        publish_opening()
    group.start("worker", "run_worker", stop_with=signal.SIGTERM)
    # --insecure serves the static files with DEBUG off, so that the demonstration shows what
    # production shows: no debug pages, and no list of queries that grows for ever.
    site = ["runserver", f"{HOST}:{port}", "--noreload", "--insecure"]
    group.start("site", *site, stop_with=signal.SIGINT)
    while not listening(port):
        group.wait(LOOK)

    say("demo", "")
    say("demo", f"Open      http://{HOST}:{port}/")
    say("demo", "User      admin")
    say("demo", f"Password  {password}")
    if log is not None:
        say("demo", f"What the worker and the site say is in {Path(log.name).name}.")
    if has_broker:
        say("demo", "What arrives at the broker follows; the brokers are in the admin:")
        say("demo", f"http://{HOST}:{port}/admin/deadletter/brokerstatus/")
    say("demo", "Ctrl-C ends it all.")
    say("demo", "")
    while True:
        group.wait(TRICKLE)
        send_something()
        if has_broker:
            publish_something()


def reset_admin() -> str:
    """Give the admin user a new password, in every run: there is none to remember or to leak."""
    password = secrets.token_urlsafe(12)
    users = get_user_model()._default_manager
    admin, _ = users.get_or_create(username="admin")
    admin.is_active = admin.is_staff = admin.is_superuser = True
    admin.set_password(password)
    admin.save()
    return password


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
