"""The measured messages as Django's tasks; only importable once Django is set up."""

from __future__ import annotations

from typing import Any

from .. import work

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task()
def nothing(payload: dict[str, Any]) -> None:
    work.nothing()


@task()
def pickup(payload: dict[str, Any]) -> None:
    work.pickup(payload["sent"])
