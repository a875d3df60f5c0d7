"""`DEADLETTER["BROKERS"]`: what cannot work is an error of `manage.py check`, without passwords."""

from __future__ import annotations

import pytest

from deadletter.checks import check_settings
from deadletter.conf import get_settings

REDIS = "deadletter.outbox.transports.redis_streams.RedisStreams"


@pytest.mark.parametrize(
    ("brokers", "text"),
    [
        ([], "expected a dict of brokers"),
        ({"a b": {}}, "is not the name of a broker"),
        ({"default": "redis://"}, "expected a dict of options, got str"),
        ({"default": {}}, "expected a url"),
        ({"default": {"url": "kafka://u:secret@h"}}, "no transport for urls of 'kafka'"),
        ({"default": {"url": "amqp://u:[secret]@h/"}}, "default: url: not the address"),
        ({"default": {"url": "amqp://u:secret\u2100@h/"}}, "default: url: not the address"),
        (
            {"default": {"transport": "amqp://u:secret@h"}},
            "default: transport: expected the dotted",
        ),
        ({"amqp://u:secret@h": {}}, "is not the name of a broker"),
        ({"default": {"url": "redis://h", "batch": 0}}, "default: batch: expected 1 to 10,000"),
        ({"default": {"url": "redis://h", "timeout": 60}}, "at most 20 seconds"),
        ({"default": {"url": "redis://h", "max_attempts": 0}}, "default: max_attempts"),
    ],
)
def test_what_cannot_work_is_an_error(settings, brokers, text):
    settings.DEADLETTER = {"BROKERS": brokers}

    (found,) = check_settings(None)

    assert found.id == "deadletter.E003"
    assert text in found.msg
    assert "secret" not in found.msg + found.hint


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://u:secret@h/0", "colour": "red"},
        {"transport": "deadletter.outbox.transports.nowhere.Nothing", "url": "x://u:secret@h"},
        {"transport": REDIS, "url": "unix://u:[secret]@/run/redis.sock"},
        {"url": "amqp://h", "ssl": {"ca_file": "secret.pem"}},
        {"url": "redis://h", "ssl": {"verify": False}},
        {"url": "amqps://h", "ssl": {"verify": None}},
        {"url": "rediss://h", "ssl": {"verify": "secret"}},
        {"url": "amqps://h", "ssl": {"cert_file": 7}},
    ],
)
def test_a_transport_that_cannot_be_built_is_an_error(settings, options):
    settings.DEADLETTER = {"BROKERS": {"default": options}}

    (found,) = check_settings(None)

    assert found.id == "deadletter.E016"
    assert "DEADLETTER['BROKERS']['default']" in found.msg
    assert "secret" not in found.msg + found.hint


def test_a_broker_is_read_with_its_defaults(settings):
    settings.DEADLETTER = {"BROKERS": {"default": {"url": "rediss://u:secret@h", "prefix": "x"}}}

    broker = get_settings().brokers["default"]

    assert broker.options == {"url": "rediss://u:secret@h", "prefix": "x"}
    assert (broker.batch, broker.timeout, broker.max_attempts) == (500, 20.0, 5)
    assert "secret" not in repr(broker)
