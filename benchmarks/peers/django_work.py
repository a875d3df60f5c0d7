"""The measured messages as Django's tasks; only importable once Django is set up."""

from __future__ import annotations

from .. import work

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task()
def nothing(n: int, filling: str) -> None:
    work.nothing()


@task()
def pickup(sent: int, filling: str) -> None:
    work.pickup(sent)
