"""Tests with real transactions flush the database: the declared queues must come back."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from deadletter.models import Queue

pytestmark = pytest.mark.slow


@pytest.mark.django_db(transaction=True)
def test_a_flushed_database_has_its_declared_queues_again():
    Queue.objects.create(name="made-by-hand")

    call_command("flush", interactive=False, verbosity=0)

    assert list(Queue.objects.values_list("name", flat=True)) == ["default"]
