"""Flows and activities for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deadletter.instances import Flow, flows
from deadletter.models import Instance, InstanceEvent


@pytest.fixture
def flow() -> Iterator[Callable[..., None]]:
    """Register an orchestration for one test: `flow("order", function, version="2")`."""
    names: list[str] = []

    def register(name: str, function: Callable[..., Any], version: str = "1.0.0") -> None:
        flows.add(Flow(name=name, version=version, function=function))
        names.append(name)

    yield register
    for name in names:
        flows.remove(name)


@pytest.fixture
def timeline(db: None) -> Callable[[str], list[str]]:
    """Return the names of what an instance did, in order."""

    def read(instance: str) -> list[str]:
        rows = InstanceEvent.objects.filter(instance=instance).order_by("id")
        return list(rows.values_list("event", flat=True))

    return read


@pytest.fixture
def standing(db: None) -> Callable[[str], tuple[str, str | None]]:
    """Return the status of an instance and the text of its error."""

    def read(instance: str) -> tuple[str, str | None]:
        row = Instance.objects.get(pk=instance)
        return row.status, None if row.error_details is None else row.error_details.text

    return read
