"""The options of the transports: what is refused, and that no secret is told."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from deadletter.outbox.transports import rabbitmq, redis_streams
from deadletter.outbox.transports.rabbitmq import RabbitMQ
from deadletter.outbox.transports.redis_streams import RedisStreams

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("transport", "options", "text"),
    [
        (RabbitMQ, {}, "url: not the address of a broker: begin it with amqp:// or amqps://"),
        (RabbitMQ, {"url": 7}, "url: a int where str is due"),
        (RabbitMQ, {"url": "amqp://"}, "url: not the address"),
        (RabbitMQ, {"url": f"amqp://me:{SECRET}#x@host:5672"}, "write special characters"),
        (RabbitMQ, {"url": f"amqp://me:{SECRET}/x@host"}, "write special characters"),
        (RabbitMQ, {"url": f"http://me:{SECRET}@host"}, "url: not the address"),
        (RabbitMQ, {"url": f"amqp://me:{SECRET}@host?heartbeat=5"}, "url: it has a query"),
        (RabbitMQ, {"mandatory": 1}, "mandatory: a int where bool is due"),
        (RabbitMQ, {"heartbeat": 0}, "heartbeat: 0 is not above 0"),
        (RabbitMQ, {"max_size": True}, "max_size: a bool where float is due"),
        (RabbitMQ, {"exchange": "x" * 256}, "exchange: more than 255 bytes"),
        (RabbitMQ, {"hosts": "b:5672"}, "hosts: a str where list is due"),
        (RabbitMQ, {"ssl": {"cafile": "x"}}, "ssl: cafile is not known; there are ca_file"),
        (RabbitMQ, {"ssl": {"key_file": "x"}}, "ssl: key_file without cert_file"),
        (RabbitMQ, {"declare": {"queue": {}}}, "declare: queue is not known"),
        (RabbitMQ, {"declare": {"exchange_type": "topic"}}, "'amq.topic' is RabbitMQ's own"),
        (RabbitMQ, {"declare": {"queues": {"a": "orders"}}}, "'a' has no list of binding keys"),
        (
            RabbitMQ,
            {"exchange": "", "declare": {"queues": {"a": ["b"]}}},
            "the default exchange has no bindings",
        ),
        (RedisStreams, {"url": "redis"}, "begin it with redis:// or rediss://"),
        (RedisStreams, {"url": f"redis://:{SECRET}@host/zero"}, "not the number of a database"),
        (RedisStreams, {"url": f"redis://:{SECRET}#@host:6379/0"}, "url: not the address"),
        (
            RedisStreams,
            {"url": f"redis://:{SECRET}@host?socket_timeout=5"},
            "url: socket_timeout in its query is not known",
        ),
        (RedisStreams, {"url": "unix://"}, "without the path of a socket"),
        (RedisStreams, {"maxlen": 0}, "maxlen: 0 is not above 0"),
        (RedisStreams, {"prefix": None}, "prefix: a NoneType where str is due"),
    ],
)
def test_options_that_cannot_work_are_named(
    transport: Any, options: dict[str, Any], text: str
) -> None:
    usual = {"url": "amqp://host" if transport is RabbitMQ else "redis://host"}
    given = options if not options or "url" in options else {**usual, **options}

    with pytest.raises(ImproperlyConfigured) as raised:
        transport(given)

    assert text in str(raised.value)
    assert SECRET not in str(raised.getrepr(chain=True, showlocals=False, style="short"))


@pytest.mark.parametrize(
    ("transport", "url", "shown"),
    [
        (RabbitMQ, f"amqps://me:{SECRET}@host/v", "<RabbitMQ host:5671 exchange='amq.topic'>"),
        (RabbitMQ, f"amqp://me:{SECRET}@[::1]", "<RabbitMQ [::1]:5672 exchange='amq.topic'>"),
        (RedisStreams, f"redis://me:{SECRET}@host/3", "<RedisStreams host:6379 prefix=''>"),
        (
            RedisStreams,
            f"unix:///run/redis.sock?db=1&password={SECRET}",
            "<RedisStreams /run/redis.sock prefix=''>",
        ),
    ],
)
def test_the_repr_has_no_credentials(transport: Any, url: str, shown: str) -> None:
    built = transport({"url": url})

    assert repr(built) == shown
    assert not any(
        SECRET in repr(value) for name, value in vars(built).items() if name != "options"
    )


def test_user_password_and_virtual_host_are_decoded() -> None:
    transport = RabbitMQ({"url": "amqp://m%40e:p%2Fw%3A@host:1/a%2Fb", "hosts": ["b", "c:7"]})

    assert (transport._address.username, transport._address.password) == ("m@e", "p/w:")
    assert transport._address.path == "a/b"
    assert transport._hosts == ["host:1", "b:1", "c:7"]


@pytest.mark.parametrize(
    ("given", "used"), [("", SECRET), (":of-the-url", "of-the-url")], ids=["apart", "in the url"]
)
def test_the_password_may_be_an_option_of_its_own(given: str, used: str) -> None:
    rabbit = RabbitMQ({"url": f"amqp://me{given}@host", "password": SECRET})
    redis = RedisStreams({"url": f"redis://me{given}@host", "password": SECRET})

    assert (rabbit._address.username, rabbit._address.password) == ("me", used)
    assert redis._new_client().connection_pool.connection_kwargs["password"] == used
    assert SECRET not in repr(rabbit) + repr(redis)


def test_a_password_that_is_none_is_refused() -> None:
    for build, url in ((RabbitMQ, "amqp://host"), (RedisStreams, "unix:///run/redis.sock")):
        with pytest.raises(ImproperlyConfigured, match="password: a int where str is due"):
            build({"url": url, "password": 7})


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "amqp", None)
    monkeypatch.setattr(redis_streams, "redis", None)

    with pytest.raises(ImproperlyConfigured) as no_amqp:
        RabbitMQ({"url": "amqp://host"})
    with pytest.raises(ImproperlyConfigured) as no_redis:
        RedisStreams({"url": "redis://host"})

    assert 'pip install "django-deadletter[rabbitmq]"' in str(no_amqp.value)
    assert 'pip install "django-deadletter[redis]"' in str(no_redis.value)


@pytest.mark.process
def test_the_package_needs_no_extra() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['amqp'] = sys.modules['redis'] = None\n"
        "import deadletter.outbox.transports.rabbitmq as r\n"
        "import deadletter.outbox.transports.redis_streams as s\n"
        "print(r.amqp, s.redis)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "None None\n"
