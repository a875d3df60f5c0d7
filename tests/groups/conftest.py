"""Failures of one cause after another, and what the groups say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deadletter import FailureReason, send
from deadletter.lifecycle import Failure, claim, custom_fingerprints, fail
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup

#: The exception, the frame and the text of most failures here.
CAUSE = {"exception": "shop.Boom", "frame": "shop/mail.py in send", "error": "boom"}


@pytest.fixture(autouse=True)
def no_known_fingerprints() -> Iterator[None]:
    custom_fingerprints.forget()
    yield
    custom_fingerprints.forget()


@pytest.fixture
def failed(clock: Any) -> Callable[..., None]:
    """Send a message and let it fail: `failed("mail", times=2, release="2.7.0")`."""

    def run(name: str = "mail", *, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            send(name, {}, queue=options.get("queue", "default"))
        batch = claim(queues=[options.pop("queue", "default")])
        # A retry would be claimed together with the next message.
        given = {"reason": FailureReason.HANDLER_EXCEPTION, "release": "", "delay": "30d"}
        given |= CAUSE | options
        fail(batch.token, [Failure(id, **given) for id in batch.ids])

    return run


@pytest.fixture
def group() -> Callable[..., FailureGroup]:
    """Fold, and return the only group, or the only one with these values."""

    def read(**which: Any) -> FailureGroup:
        fold_all_groups()
        return FailureGroup.objects.get(**which)

    return read
