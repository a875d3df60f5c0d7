"""The settings dict is read once, and again when another one takes its place."""

from __future__ import annotations

import pytest
from django.test import override_settings

from deadletter.conf import get_settings


def test_the_same_dict_is_read_once():
    assert get_settings() is get_settings()


def test_another_dict_counts_at_once_and_the_first_one_afterwards():
    before = get_settings()

    with override_settings(DEADLETTER={"STREAM_CAP": 3}):
        assert get_settings().stream_cap == 3
    assert get_settings() == before


def test_no_dict_at_all_means_the_defaults(settings):
    with override_settings(DEADLETTER={"STREAM_CAP": 3}):
        get_settings()
    del settings.DEADLETTER

    assert get_settings().stream_cap == 25
    assert get_settings() is get_settings()


def test_what_is_refused_is_refused_each_time():
    with override_settings(DEADLETTER={"STREAM_CAP": 0}):
        for _ in range(2):
            with pytest.raises(ValueError, match="STREAM_CAP"):
                get_settings()
