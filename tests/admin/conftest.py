"""An operator's browser, and rows as bad as a table can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from deadletter import FailureReason, lifecycle, send
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import PoisonRecord

SCRIPT = "<script>alert('&')</script>"


@pytest.fixture
def login(db: None) -> Callable[..., Client]:
    """Return a browser of a staff member with these permissions and no others."""

    def browser(*permissions: str) -> Client:
        user = User.objects.create_user("operator", password="secret", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return browser


@pytest.fixture
def poisoned(db: None) -> Callable[..., PoisonRecord]:
    """Send a message and let it fail for good; `failed` are more fields of the failure."""

    def poison(
        name: str = "mail", payload: Any = None, *, failed: Any = None, **given: Any
    ) -> PoisonRecord:
        error = given.pop("error", "RuntimeError: no such customer")
        message = send(name, payload, **given)
        batch = lifecycle.claim(limit=1, worker="w1")
        assert batch.ids == [message.pk]
        facts = {"reason": FailureReason.HANDLER_EXCEPTION, "traceback": f"Traceback: {error}"}
        failure = Failure(message.pk, error=error, permanent=True, **{**facts, **(failed or {})})
        lifecycle.fail(batch.token, [failure])
        fold_all_groups()
        return PoisonRecord.objects.get(message_id=message.pk)

    return poison


@pytest.fixture
def damage(db: None) -> Callable[..., None]:
    """Write to a column what no verb would write."""

    def write(row: Any, column: str, value: object) -> None:
        table = row._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", [value, row.pk])

    return write


def url(model: str, page: str = "changelist", *args: object) -> str:
    return reverse(f"admin:deadletter_{model}_{page}", args=args)
