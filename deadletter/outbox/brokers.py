"""`DEADLETTER["BROKERS"]`: which brokers there are, and how messages reach them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ..backoff import Backoff
from ..durations import as_timedelta
from ..text import short_repr
from .transports.base import Transport
from .transports.options import split_url

#: Transports by the scheme of the broker's url.
TRANSPORTS = {
    "amqp": "deadletter.outbox.transports.rabbitmq.RabbitMQ",
    "amqps": "deadletter.outbox.transports.rabbitmq.RabbitMQ",
    "redis": "deadletter.outbox.transports.redis_streams.RedisStreams",
    "rediss": "deadletter.outbox.transports.redis_streams.RedisStreams",
    "unix": "deadletter.outbox.transports.redis_streams.RedisStreams",
}
#: Seconds: a batch must be over well before the lease of its lane.
LONGEST_TIMEOUT = 20.0
LARGEST_BATCH = 10_000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


@dataclass(frozen=True, kw_only=True)
class Broker:
    """One broker of the settings."""

    name: str
    #: The dotted path of its Transport.
    transport: str
    #: What the transport is given. Never shown: a url contains a password.
    options: Mapping[str, Any] = field(repr=False)
    #: The CloudEvents attribute `source`; empty: the relay names the site.
    source: str = ""
    #: How often a message that the broker refuses is tried; None: for ever.
    max_attempts: int | None = 5
    backoff_base: timedelta = timedelta(seconds=5)
    backoff_cap: timedelta = timedelta(minutes=10)
    #: Messages published at a time, and the seconds that their confirms may take.
    batch: int = 500
    timeout: float = LONGEST_TIMEOUT
    #: How long confirmed messages are kept: 0 not at all, None for ever, ... as OUTBOX_KEPT says.
    kept: Any = ...

    @property
    def backoff(self) -> Backoff:
        return Backoff(base=self.backoff_base, cap=self.backoff_cap, jitter=0.1)

    def new_transport(self) -> Transport:
        """Raises: ImproperlyConfigured for options that cannot work, or a missing package."""
        build: type[Transport] = import_string(self.transport)
        if build.option_names and (unknown := sorted(set(self.options) - build.option_names)):
            known = ", ".join(sorted({*build.option_names, *_READERS}))
            raise ImproperlyConfigured(f"unknown option {unknown[0]!r} (there are: {known})")
        return build(self.options)


def read_brokers(value: Any) -> dict[str, Broker]:
    """Read the setting. Raises ValueError or TypeError; the text quotes no url."""
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict of brokers")
    found = {}
    for name, given in value.items():
        if isinstance(name, str) and "://" in name:
            raise ValueError("a url is not the name of a broker; not shown, it may have a password")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{short_repr(name)} is not the name of a broker")
        if not isinstance(given, Mapping):
            raise TypeError(f"{name}: expected a dict of options, got {type(given).__name__}")
        found[name] = _broker(name, given)
    return found


def _broker(name: str, given: Mapping[str, Any]) -> Broker:
    values = {
        key: read(f"{name}: {key}", given[key]) for key, read in _READERS.items() if key in given
    }
    options = {key: item for key, item in given.items() if key not in _READERS}
    if "transport" not in values:
        url = given.get("url")
        if not isinstance(url, str) or not url:
            raise ValueError(f"{name}: expected a url, such as amqp://user:password@host:5672/")
        parts, _port = split_url(url)
        if parts is None:
            raise ValueError(
                f"{name}: url: not the address of a broker: write special characters of the "
                "password as %XX"
            )
        scheme = parts.scheme
        if scheme not in TRANSPORTS:
            known = ", ".join(f"{known}://" for known in TRANSPORTS)
            raise ValueError(
                f"{name}: no transport for urls of {short_repr(scheme)} (there are: {known}); "
                "give the path of your own as `transport`"
            )
        values["transport"] = TRANSPORTS[scheme]
    return Broker(name=name, options=options, **values)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{where}: expected text, got {short_repr(value)}")
    return value


def _path(where: str, value: Any) -> str:
    """Read a dotted path. The error does not quote it: it may be a url in the wrong place."""
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise ValueError(
            f"{where}: expected the dotted path of a class, such as site.brokers.Kafka"
        )
    return value


def _attempts(where: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{where}: expected a positive number or None, got {short_repr(value)}")
    return value


def _duration(where: str, value: Any) -> timedelta:
    return as_timedelta(value, field=where)


def read_kept(where: str, value: Any) -> timedelta | None:
    """Return how long confirmed messages are kept: "never" is 0, None is for ever."""
    if value == "never":
        return timedelta(0)
    return None if value is None else as_timedelta(value, field=where)


def _batch(where: str, value: Any) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= LARGEST_BATCH:
        raise ValueError(f"{where}: expected 1 to {LARGEST_BATCH:,}, got {short_repr(value)}")
    return int(value)


def _timeout(where: str, value: Any) -> float:
    seconds = as_timedelta(value, field=where).total_seconds()
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise ValueError(f"{where}: expected more than 0 and at most {LONGEST_TIMEOUT:g} seconds")
    return seconds


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "transport": _path,
    "source": _text,
    "max_attempts": _attempts,
    "backoff_base": _duration,
    "backoff_cap": _duration,
    "batch": _batch,
    "timeout": _timeout,
    "kept": read_kept,
}
