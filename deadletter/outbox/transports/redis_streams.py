"""
Redis Streams: one XADD for each event, in one pipeline.

An event that Redis has confirmed survives the death of the process with `appendonly yes`; that of
the machine only with `appendfsync always`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured

from ...status import FailureReason
from ..cloud_events import CloudEvent
from .base import BrokerRefusal, BrokerUnavailable, Report, Transport
from .options import (
    MAX_SIZE,
    read_address,
    read_option,
    read_password,
    read_positive,
    read_tls,
    split_url,
)

try:
    import redis
except ImportError:
    redis = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .redis_pipeline import ReplyPipeline

PORTS = {"redis": 6379, "rediss": 6379}
#: What may stand in the query of the url. Others would override what we set.
QUERY = {"db", "username", "password"}
DATA = b"data"
#: Names of custom headers begin with it, so that they cannot hide an attribute.
HEADER = "header:"
#: Errors of one stream. Every other error concerns the server.
REFUSALS = (
    "WRONGTYPE",
    "The ID specified in XADD",
    "The stream has exhausted",
    "No permissions to access a key",
    "this user has no permissions to access one of the keys",
)
#: What Redis adds to an error about a command: its arguments, cut off after 128 characters.
ARGUMENTS = re.compile(r", with args beginning with:.*", re.DOTALL)
#: Seconds for a reply until the first batch says how long it may take.
REPLY_SECONDS = 5.0


class RedisStreams(Transport):
    """
    Appends events to streams; the stream of an event is `prefix` and its topic.

    - `prefix` (""): what the names of the streams begin with.
    - `maxlen`: about as many entries are kept in each stream, whether they were read or not. By
      default all are kept, and consumers trim.
    - `max_size`: bytes of the data of one event; larger ones are refused.
    - `connect_timeout` (5) in seconds; `ssl` for rediss://: see TLSOptions.

    Redis executes the commands of a batch one after the other: if it runs out of memory in the
    middle, later ones may still succeed.
    """

    option_names = frozenset(
        {"url", "password", "prefix", "maxlen", "max_size", "connect_timeout", "ssl"}
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if redis is None:
            raise ImproperlyConfigured(
                'Redis needs the package redis: pip install "django-deadletter[redis]"'
            )
        self._place = _read_place(options)
        self._prefix = read_option(options, "prefix", str, "")
        self._maxlen = None
        if options.get("maxlen") is not None:
            self._maxlen = int(read_positive(options, "maxlen", 1))
        self._max_size = read_positive(options, "max_size", MAX_SIZE)
        self._connect_timeout = read_positive(options, "connect_timeout", 5)
        self._tls = read_tls(options)
        self._reply_seconds = REPLY_SECONDS
        self._client: redis.Redis | None = None
        #: Of the last client: the url or the option has it.
        self._password = ""

    def __repr__(self) -> str:
        return f"<RedisStreams {self._place} prefix={self._prefix!r}>"

    def open(self) -> None:
        # The pool of redis-py replaces a connection which the server has closed.
        if self._client is None:
            self._client = self._new_client()
            self._ping(self._client)

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        if self._client is None:
            raise BrokerUnavailable(f"{self._name()}: there is no connection; open it first")
        client = self._client_for(timeout)
        pipeline = self._new_pipeline(client, deadline=monotonic() + timeout / 2)
        indexes = self._queue(pipeline, events, report)
        failure: Exception | None = None
        try:
            pipeline.execute(raise_on_error=False)
        except (redis.RedisError, OSError) as error:
            failure = error
        except BaseException:
            self.close()
            raise
        for index, reply in zip(indexes, pipeline.replies, strict=False):
            if not isinstance(reply, Exception):
                report(index)
            elif refusal := self._refusal(reply, events[index]):
                report(index, refusal)
            else:
                failure = failure or reply
        if failure is not None:
            self.close()
            raise BrokerUnavailable(self._explain(failure)) from failure

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()
            with suppress(Exception):
                client.connection_pool.disconnect()

    def blocked(self) -> str | None:
        if self._client is not None:
            self._ping(self._client)
        return None

    def _client_for(self, timeout: float) -> redis.Redis:
        """
        Return a client that is done after `timeout` seconds.

        A half is for writing and for the beginning of the last reply, a half for the rest of it:
        redis-py limits each single wait.
        """
        if self._reply_seconds != timeout / 2 or self._client is None:
            self.close()
            self._reply_seconds = timeout / 2
            self._client = self._new_client()
        return self._client

    def _new_client(self) -> redis.Redis:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        tls: dict[str, Any] = {}
        if self.options["url"].startswith("rediss://"):
            tls = {
                "ssl_ca_certs": self._tls.ca_file,
                "ssl_certfile": self._tls.cert_file,
                "ssl_keyfile": self._tls.key_file,
                "ssl_cert_reqs": "required" if self._tls.verify else "none",
                "ssl_check_hostname": self._tls.verify,
            }
        client = redis.Redis.from_url(
            self.options["url"],
            # One in the url comes before it.
            password=read_password(self.options),
            socket_timeout=self._reply_seconds,
            # redis-py would send a whole pipeline again.
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            **({} if self._is_socket else {"socket_connect_timeout": self._connect_timeout}),
            **tls,
        )
        self._password = client.get_connection_kwargs().get("password") or ""
        return client

    @property
    def _is_socket(self) -> bool:
        return bool(self.options["url"].startswith("unix://"))

    def _ping(self, client: redis.Redis) -> None:
        try:
            client.ping()
        except (redis.RedisError, OSError) as error:
            self.close()
            raise BrokerUnavailable(self._explain(error)) from error

    def _new_pipeline(self, client: redis.Redis, *, deadline: float) -> ReplyPipeline:
        from .redis_pipeline import ReplyPipeline

        return ReplyPipeline(client, deadline=deadline)

    def _queue(
        self, pipeline: ReplyPipeline, events: Sequence[CloudEvent], report: Report
    ) -> list[int]:
        """Put the commands into the pipeline and return the indexes of their events."""
        indexes = []
        for index, event in enumerate(events):
            try:
                stream, fields = self._entry(event)
            except UnicodeEncodeError as error:
                report(index, BrokerRefusal.invalid(f"it is not valid Unicode: {error.reason}"))
                continue
            if (size := len(fields[DATA])) > self._max_size:
                text = f"the data has {size} bytes; the broker takes {self._max_size:.0f}"
                report(index, BrokerRefusal.invalid(f"{text} (max_size)"))
                continue
            pipeline.xadd(stream, fields, maxlen=self._maxlen, approximate=True)  # type: ignore[arg-type]
            indexes.append(index)
        return indexes

    def _entry(self, event: CloudEvent) -> tuple[bytes, dict[bytes, bytes]]:
        fields = {name.encode(): value.encode() for name, value in event.attributes()}
        fields[DATA] = event.data.encode()
        for name, value in event.headers.items():
            fields[(HEADER + name).encode()] = value.encode()
        return (self._prefix + event.topic).encode(), fields

    def _refusal(self, error: Exception, event: CloudEvent) -> BrokerRefusal | None:
        text = str(error)
        if not any(text.removeprefix("ERR ").startswith(start) for start in REFUSALS):
            return None
        return BrokerRefusal(
            FailureReason.TRANSPORT_UNAVAILABLE,
            f"{self._name()} refused XADD to {self._prefix + event.topic!r}: {text}; rename or "
            "correct the key, or use another prefix",
        )

    def _explain(self, error: Exception) -> str:
        return f"{self._name()}: {type(error).__name__}: {self._without_secrets(error)}"

    def _without_secrets(self, error: Exception) -> str:
        """Return the text of an error. An old server repeats the HELLO that it does not know."""
        text = ARGUMENTS.sub("", str(error))
        return text.replace(self._password, "***") if self._password else text

    def _name(self) -> str:
        return f"Redis at {self._place}"


def _read_place(options: Mapping[str, Any]) -> str:
    """Return where the server is, for texts; check the url."""
    url = read_option(options, "url", str, "")
    read_password(options)
    if url.startswith("unix://"):
        parts, _port = split_url(url)
        place = "" if parts is None else parts.path
        if not place:
            raise ImproperlyConfigured("url: unix:// without the path of a socket")
    else:
        address = read_address(options, ports=PORTS)
        place = address.place
        if address.path and not address.path.isdigit():
            raise ImproperlyConfigured("url: what follows the port is not the number of a database")
    if unknown := parse_qs(urlsplit(url).query).keys() - QUERY:
        raise ImproperlyConfigured(
            f"url: {', '.join(sorted(unknown))} in its query is not known; give it as an option "
            "of the broker"
        )
    return place
