"""
RabbitMQ, by AMQP 0.9.1: publisher confirms in a pipeline.

A batch is written at once; the broker confirms, rejects or returns each message in any order. A
message that was returned is confirmed as well, after its return.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from ...status import FailureReason
from ..cloud_events import CONTENT_TYPE, CloudEvent
from .base import BrokerRefusal, BrokerUnavailable, Report, Transport
from .options import (
    MAX_SIZE,
    BrokerAddress,
    TLSOptions,
    read_address,
    read_option,
    read_positive,
    read_tls,
    refuse_unknown,
)

try:
    import amqp
except ImportError:
    amqp = None

if TYPE_CHECKING:
    from .amqp_connection import PublisherConnection

PORTS = {"amqp": 5672, "amqps": 5671}
#: It exists on every RabbitMQ.
EXCHANGE = "amq.topic"
#: The AMQP binding of CloudEvents, binary mode; datacontenttype is a property of AMQP.
PREFIX = "cloudEvents:"
PERSISTENT = 2
#: Bytes of a "short string": routing keys, names of headers, message ids.
SHORT = 255
#: Bytes of a message's header frame beside its table of headers, at most.
PROPERTIES_OVERHEAD = 1024
#: Bytes that are collected before they are written.
CHUNK = 64 * 1024
#: Seconds for an orderly end of the connection.
CLOSE_SECONDS = 2.0
#: What the broker says when it closes the channel because of one message.
TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
TOPIC_DENIED = re.compile(r"access to topic '(.*)' in exchange")


@dataclass(frozen=True, slots=True)
class Declarations:
    """The option `declare`: what is created when the connection is opened, if it is missing."""

    exchange_type: str | None = None
    #: Durable quorum queues, with their binding keys.
    queues: Mapping[str, Sequence[str]] | None = None


class RabbitMQ(Transport):
    """
    Publishes to one exchange of RabbitMQ; the topic is the routing key.

    - `exchange`: which exists, "amq.topic" by default; "" sends to the queue named as the topic.
    - `mandatory` (True): an event for which no queue is bound is refused instead of dropped.
    - `declare`: {"exchange_type": "topic", "queues": {"billing": ["orders.#"]}} creates a durable
      exchange and durable quorum queues with their binding keys.
    - `hosts`: further nodes of the cluster, ["b:5672", "c:5672"], tried in this order.
    - `max_size`: bytes of the data of one event; larger ones are refused.
    - `heartbeat` (60) and `connect_timeout` (5) in seconds; `ssl`: see TLSOptions.
    """

    option_names = frozenset(
        {
            "url",
            "password",
            "hosts",
            "exchange",
            "mandatory",
            "declare",
            "ssl",
            "max_size",
            "heartbeat",
            "connect_timeout",
        }
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if amqp is None:
            raise ImproperlyConfigured(
                'RabbitMQ needs the package amqp: pip install "django-deadletter[rabbitmq]"'
            )
        self._address = read_address(options, ports=PORTS)
        if "?" in options["url"]:
            raise ImproperlyConfigured("url: it has a query; give these as options of the broker")
        #: Further nodes of the cluster, with the same user.
        hosts = read_option(options, "hosts", list, [])
        self._hosts = [self._address.place, *(_with_port(host, self._address) for host in hosts)]
        self._exchange = read_option(options, "exchange", str, EXCHANGE)
        self._is_mandatory = read_option(options, "mandatory", bool, True)
        self._declarations = _read_declarations(options, exchange=self._exchange)
        self._tls = read_tls(options)
        self._max_size = read_positive(options, "max_size", MAX_SIZE)
        self._heartbeat = math.ceil(read_positive(options, "heartbeat", 60))
        self._connect_timeout = read_positive(options, "connect_timeout", 5)
        if _is_long(self._exchange):
            raise ImproperlyConfigured(f"exchange: more than {SHORT} bytes")
        self._connection: PublisherConnection | None = None
        self._channel: Any = None
        #: Messages published on this channel: the broker counts them, too.
        self._tag = 0
        self._batch = _Batch()

    def __repr__(self) -> str:
        return f"<RabbitMQ {self._address.place} exchange={self._exchange!r}>"

    def open(self) -> None:
        if self._connection is not None:
            try:
                self._look_at(self._connection)
            except (amqp.AMQPError, OSError):
                self._abort()
            else:
                return
        self._connect()

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        connection = self._connection
        if connection is None:
            raise BrokerUnavailable(f"{self._name()}: there is no connection; open it first")
        batch = self._batch = _Batch()
        try:
            for _ in self._exchange_frames(connection, events, monotonic() + timeout):
                self._report(batch, events, report)
        except _ConnectionLost as lost:
            is_blocked = connection.is_blocked
            self._abort()
            self._blame(lost.error, batch, events)
            self._report(batch, events, report)
            text = self._explain(lost.error, is_blocked=is_blocked)
            raise BrokerUnavailable(text) from lost.error
        except BaseException:  # of `report`, for example: the state of the channel is unknown
            self._abort()
            raise
        if batch.nacked:
            self._abort()
            raise BrokerUnavailable(
                f"{self._name()} rejected {batch.nacked} of {len(events)} messages (basic.nack): "
                "a queue is full or has no leader; look at the queues that are bound to exchange "
                f"{self._exchange!r}"
            )

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        with suppress(Exception):
            if connection.connected and not connection.is_blocked:
                # The broker may not answer.
                connection.sock.settimeout(CLOSE_SECONDS)
                connection.close()
        with suppress(Exception):
            connection.abort()

    def blocked(self) -> str | None:
        connection = self._connection
        if connection is None:
            return None
        try:
            self._look_at(connection)
        except (amqp.AMQPError, OSError) as error:
            text = self._explain(error, is_blocked=False)
            self._abort()
            raise BrokerUnavailable(text) from error
        return f"{self._name()} {BLOCKED}" if connection.is_blocked else None

    # -- Connecting

    def _connect(self) -> None:
        failures = []
        for host in self._hosts:
            connection = self._new_connection(host)
            try:
                connection.connect()
                connection.sock.settimeout(self._connect_timeout)
                channel = connection.channel()
                self._declare(channel)
                channel.confirm_select()
            except (amqp.AMQPError, OSError) as error:
                connection.abort()
                failures.append(f"{host}: {self._describe(error)}")
                continue
            self._connection, self._channel, self._tag = connection, channel, 0
            channel.events["basic_ack"].add(self._on_ack)
            channel.events["basic_nack"].add(self._on_nack)
            channel.events["basic_return"].add(self._on_return)
            return
        raise BrokerUnavailable(f"RabbitMQ: no connection. {'; '.join(failures)}")

    def _new_connection(self, host: str) -> PublisherConnection:
        from .amqp_connection import PublisherConnection

        return PublisherConnection(
            host=host,
            userid=self._address.username or "guest",
            password=self._address.password or "guest",
            virtual_host=self._address.path or "/",
            ssl=_tls_arguments(self._tls, host) if self._address.is_tls else False,
            connect_timeout=self._connect_timeout,
            heartbeat=self._heartbeat,
            # py-amqp sets one second: since Linux 5.11 the kernel then ends a connection to which
            # a blocked broker has not listened for a second.
            socket_settings={socket.TCP_USER_TIMEOUT: int(2000 * self._heartbeat)},
            client_properties={"connection_name": "deadletter outbox"},
        )

    def _declare(self, channel: Any) -> None:
        declared = self._declarations
        if declared.exchange_type is not None:
            channel.exchange_declare(
                self._exchange, declared.exchange_type, durable=True, auto_delete=False
            )
        for queue, keys in (declared.queues or {}).items():
            channel.queue_declare(
                queue, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
            )
            for key in keys:
                channel.queue_bind(queue, self._exchange, routing_key=key)

    def _look_at(self, connection: PublisherConnection) -> None:
        """Handle what has arrived since, and the heartbeat. Raises if the connection is lost."""
        connection.read_available()
        connection.heartbeat_tick()

    def _abort(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.abort()

    # -- A batch

    def _exchange_frames(
        self, connection: PublisherConnection, events: Sequence[CloudEvent], deadline: float
    ) -> Iterator[None]:
        """
        Publish the batch and wait for the confirms; pause when there may be something to report.

        Raises: _ConnectionLost, which tells errors of the connection from those of the caller.
        """
        try:
            yield from self._publish_all(connection, events, deadline)
        except (amqp.AMQPError, OSError) as error:
            raise _ConnectionLost(error) from error

    def _publish_all(
        self, connection: PublisherConnection, events: Sequence[CloudEvent], deadline: float
    ) -> Iterator[None]:
        batch, channel = self._batch, self._channel
        connection.begin()
        for index, event in enumerate(events):
            message = self._message(event, connection.frame_max)
            if isinstance(message, BrokerRefusal):
                batch.refused.append((index, message))
                continue
            self._tag += 1
            batch.unconfirmed[self._tag] = index
            channel.basic_publish(
                message,
                exchange=self._exchange,
                routing_key=event.topic,
                mandatory=self._is_mandatory,
            )
            if self._tag == 1:
                # A broker with an alarm says so after the first message, and reads no other: what
                # we had written by then would arrive later, and be published again by us.
                while batch.unconfirmed:
                    connection.read_some(deadline)
            elif connection.unsent_bytes >= CHUNK:
                connection.flush(deadline)
                yield
        connection.flush(deadline)
        yield
        while batch.unconfirmed:
            connection.read_some(deadline)
            yield
        connection.end()

    def _message(self, event: CloudEvent, frame_max: int) -> Any:
        """Return the message, or the refusal of what the broker would close the channel for."""
        for name, text in (("topic", event.topic), ("id", event.id)):
            if _is_long(text):
                return BrokerRefusal.invalid(
                    f"the {name} has more than {SHORT} bytes: AMQP does not allow it"
                )
        try:
            body = event.data.encode()
        except UnicodeEncodeError as error:
            return BrokerRefusal.invalid(
                f"the data is not valid Unicode: {error.reason} at {error.start}"
            )
        if len(body) > self._max_size:
            return BrokerRefusal.invalid(
                f"the data has {len(body)} bytes; the broker takes {self._max_size:.0f} (max_size)"
            )
        headers = dict(event.headers)
        for name, text in event.attributes():
            if name != "datacontenttype":
                headers[PREFIX + name] = text
        try:
            # All at once: encoding each took a fifth of this method's time.
            size = len("".join((*headers, *headers.values())).encode()) + 6 * len(headers)
        except UnicodeEncodeError as error:
            # py-amqp would raise it for the whole batch, each time.
            return BrokerRefusal.invalid(
                f"a header or the key is not valid Unicode: {error.reason}"
            )
        if size > frame_max - PROPERTIES_OVERHEAD:
            return BrokerRefusal.invalid(
                f"the headers have {size} bytes; a frame of AMQP takes {frame_max}"
            )
        # The names of the attributes are ours, and short.
        if any(map(_is_long, event.headers)):
            return BrokerRefusal.invalid(f"the name of a header has more than {SHORT} bytes")
        return amqp.Message(
            body,
            content_type=CONTENT_TYPE,
            application_headers=headers,
            delivery_mode=PERSISTENT,
            message_id=event.id,
            timestamp=int(event.time.timestamp()),
        )

    def _report(self, batch: _Batch, events: Sequence[CloudEvent], report: Report) -> None:
        """Report what is known since the last call."""
        refused, batch.refused = batch.refused, []
        for index, refusal in refused:
            report(index, refusal)
        confirmed, batch.confirmed = batch.confirmed, []
        for index in confirmed:
            event = events[index]
            is_returned = (event.id, event.topic) in batch.returned
            report(index, self._unroutable(event) if is_returned else None)

    def _unroutable(self, event: CloudEvent) -> BrokerRefusal:
        return BrokerRefusal(
            FailureReason.TRANSPORT_UNAVAILABLE,
            f"unroutable: no queue is bound to exchange {self._exchange!r} for routing key "
            f"{event.topic!r}; bind a queue, or set the broker's option mandatory to False if "
            "nobody has to receive it",
        )

    def _blame(self, error: Exception, batch: _Batch, events: Sequence[CloudEvent]) -> None:
        """Refuse the messages for which the broker has closed the channel, if it names them."""
        text = str(getattr(error, "reply_text", "") or "")
        if found := TOO_LARGE.search(text):
            limit = int(found[1])
            # The next batch is refused here, before the broker closes the channel again.
            self._max_size = min(self._max_size, limit)
            for index in batch.unconfirmed.values():
                if (size := _size(events[index].data)) > limit:
                    refusal = BrokerRefusal.invalid(
                        f"the data has {size} bytes; the broker takes {limit}"
                    )
                    batch.refused.append((index, refusal))
        elif found := TOPIC_DENIED.search(text):
            refusal = BrokerRefusal(
                FailureReason.TRANSPORT_UNAVAILABLE,
                f"the broker's user may not write to topic {found[1]!r} of exchange "
                f"{self._exchange!r}: see rabbitmqctl list_topic_permissions",
            )
            batch.refused += (
                (index, refusal)
                for index in batch.unconfirmed.values()
                if events[index].topic == found[1]
            )

    def _on_ack(self, tag: int, is_multiple: bool) -> None:
        self._batch.confirmed += self._batch.take(tag, is_multiple)

    def _on_nack(self, tag: int, is_multiple: bool) -> None:
        self._batch.nacked += len(self._batch.take(tag, is_multiple))

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._batch.returned.add((message.properties.get("message_id"), routing_key))

    # -- Texts

    def _explain(self, error: Exception, *, is_blocked: bool) -> str:
        if isinstance(error, amqp.NotFound):
            return (
                f"{self._name()} has no exchange {self._exchange!r}: create it, correct the "
                "broker's option exchange, or have it declared by the option declare"
            )
        text = f"{self._name()}: {self._describe(error)}"
        return f"{text}; it {BLOCKED}" if is_blocked else text

    def _describe(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        secret = self._address.password
        return text.replace(secret, "***") if secret else text

    def _name(self) -> str:
        return f"RabbitMQ at {self._address.place}"


BLOCKED = "blocks publishers: it is short of memory or disk space (rabbitmq-diagnostics alarms)"


class _ConnectionLost(Exception):
    def __init__(self, error: Exception) -> None:
        self.error = error


class _Batch:
    """What is known of the messages of one call of `publish`."""

    def __init__(self) -> None:
        #: Index by delivery tag, in order.
        self.unconfirmed: dict[int, int] = {}
        #: Confirmed or refused, and not yet reported.
        self.confirmed: list[int] = []
        self.refused: list[tuple[int, BrokerRefusal]] = []
        #: Ids and routing keys of returned messages. Each return comes before its confirm.
        self.returned: set[tuple[str | None, str]] = set()
        self.nacked = 0

    def take(self, tag: int, is_multiple: bool) -> list[int]:
        """Remove the message of a tag, or all up to it, and return their indexes."""
        if not is_multiple:
            index = self.unconfirmed.pop(tag, None)
            return [] if index is None else [index]
        taken = []
        for first in self.unconfirmed:
            # Zero stands for all.
            if tag and first > tag:
                break
            taken.append(first)
        return [self.unconfirmed.pop(first) for first in taken]


def _read_declarations(options: Mapping[str, Any], *, exchange: str) -> Declarations:
    given = read_option(options, "declare", dict, {})
    refuse_unknown(given, Declarations.__dataclass_fields__, within="declare")
    declarations = Declarations(**given)
    if declarations.exchange_type is not None and (not exchange or exchange.startswith("amq.")):
        raise ImproperlyConfigured(
            f"declare: exchange_type: exchange {exchange!r} is RabbitMQ's own; leave it out"
        )
    queues = read_option(given, "queues", dict, {})
    for queue, keys in queues.items():
        if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
            raise ImproperlyConfigured(f"declare: queues: {queue!r} has no list of binding keys")
        if not exchange and keys:
            raise ImproperlyConfigured(
                f"declare: queues: {queue!r}: the default exchange has no bindings; its routing "
                "keys are the names of queues"
            )
    return declarations


def _with_port(host: str, address: BrokerAddress) -> str:
    return host if re.search(r":\d+$", host) else f"{host}:{address.port}"


def _tls_arguments(tls: TLSOptions, host: str) -> dict[str, Any]:
    import ssl

    from amqp.transport import to_host_port

    return {
        "ca_certs": tls.ca_file,
        "certfile": tls.cert_file,
        "keyfile": tls.key_file,
        # Without a name py-amqp compares none.
        "server_hostname": to_host_port(host)[0] if tls.verify else None,
        "cert_reqs": ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE,
    }


def _is_long(text: str) -> bool:
    return len(text) * 4 > SHORT and _size(text) > SHORT


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
