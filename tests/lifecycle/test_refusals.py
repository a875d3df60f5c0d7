"""A refusal is the English sentence, and knows the same sentence in the language of a page."""

from __future__ import annotations

import copy

import pytest
from django.utils import translation

from deadletter.lifecycle.refusals import Refusal, RefusalReason
from deadletter.models import State

VALUES = {
    "id": 7,
    "state": State.PENDING,
    "queue": "mail",
    "key": "k",
    "n": 2,
    "poison_id": 3,
    "copy": 9,
    "instance": "order-1",
    "parent": "order-0",
    "execution": 4,
    "error": "boom",
    "failed_by": 9,
    "what": "pay#1",
    "topic": "orders.shipped",
    "group": "9f2c51e0a7b34d18",
    "main": "07da0baa6ac5aaa2",
    "owner": "ann",
    "broker": "default",
}


@pytest.mark.parametrize("reason", list(RefusalReason), ids=lambda reason: reason.name)
def test_every_reason_has_a_sentence_that_its_parameters_fill(reason: RefusalReason) -> None:
    refusal = Refusal(reason, **VALUES)

    with translation.override("en"):
        assert refusal == refusal.label
    assert "%(" not in refusal


def test_it_is_a_text_that_can_be_copied() -> None:
    refusal = Refusal(RefusalReason.NEVER_TRIED, id=7, state=State.PENDING)

    assert refusal == "message 7 is pending and was never tried; there is nothing to retry"
    assert copy.deepcopy(refusal).reason is RefusalReason.NEVER_TRIED
    assert type(str(refusal)) is str


def test_the_label_hides_no_characters_of_foreign_text() -> None:
    refusal = Refusal(RefusalReason.INSTANCE_GONE, instance="a\u202eb")

    with translation.override("en"):
        assert refusal.label == "its instance a[U+202E]b no longer exists"
