"""A task in a module of no installed app."""

from __future__ import annotations

from deadletter.tasks import task


@task
def outside() -> None:
    pass
