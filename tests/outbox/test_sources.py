"""Where an event comes from: `source` and `id` together name it, and nothing else."""

from __future__ import annotations

import pytest

from deadletter import publish
from deadletter.conf import get_settings
from deadletter.worker.relay import Relay


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
def test_events_of_two_databases_have_two_sources(broker):
    for alias in ("default", "second"):
        publish("orders.shipped", alias, using=alias)

    for alias in ("default", "second"):
        Relay(get_settings().brokers["default"], using=alias, worker="w").turn()

    found = {(event.source, event.data) for event in broker.arrived}
    assert found == {("/project", '"default"'), ("/project/second", '"second"')}


@pytest.mark.parametrize("given", ["https://shop.example/eu", "https://shop.example/eu/"])
def test_a_source_of_the_settings_is_that_of_the_database_of_messages(broker, settings, given):
    options = settings.DEADLETTER["BROKERS"]["default"] | {"source": given}
    settings.DEADLETTER = {"BROKERS": {"default": options}}
    found = get_settings().brokers["default"]

    assert Relay(found, using="default", worker="w")._source == given
    assert Relay(found, using="second", worker="w")._source == "https://shop.example/eu/second"
