"""A busy worker tells its next claim how many candidates the last one needed."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, send_many
from deadletter.worker import exchange

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_claim_is_told_what_the_last_one_needed(run, handles, monkeypatch):
    told: list[float] = []
    real = exchange.process_batch

    def noting(**given):
        if given["claim"] is not None:
            told.append(given["claim"].candidates)
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", noting)
    handled: list[int] = []
    handles("job", lambda message: handled.append(message.id))
    ids = send_many([Outgoing("job", stream=f"s{n % 100}") for n in range(1000)])

    run(batch=50)

    assert sorted(handled) == ids
    assert told[0] == 1  # nothing is known yet
    assert min(told) < 0.5  # a candidate brings up to ten
