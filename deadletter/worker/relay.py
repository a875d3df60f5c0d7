"""
The relay publishes the outbox to one broker: in a thread and on a connection of its own.

A turn reads the next messages of the relay's lanes, publishes them, waits for their confirms, and
settles them in the transaction that reads the next ones. So a key has at most one batch whose
confirms are open, and its messages arrive in order.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
from collections.abc import Callable, Sequence, Set
from datetime import timedelta
from time import monotonic
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import Error as DatabaseError

from .. import crash_points, tracing
from ..conf import get_settings
from ..exceptions import LockNotAvailable
from ..lifecycle import OUTBOX_CHANNEL
from ..lifecycle.lanes import leave_lanes, report_broker, share_lanes
from ..lifecycle.notify import INTERVAL
from ..lifecycle.outbox_batches import (
    BatchOutcome,
    OutboxRow,
    read_batch,
    read_refused,
    read_waiting_keys,
    settle_batch,
)
from ..lifecycle.pauses import (
    LaneKey,
    LaneTopic,
    Pauses,
    read_paused_keys,
    read_paused_topics,
    read_pauses,
    resume_held,
)
from ..lifecycle.transaction import SHORT_WAIT, Transaction, in_transaction
from ..logs import crash, event
from ..models import primary_alias
from ..models.outbox import RELAY_ALIVE
from ..outbox.brokers import Broker
from ..outbox.cloud_events import CloudEvent
from ..outbox.transports.base import BrokerRefusal, BrokerUnavailable, Transport
from ..status import FailureReason
from ..text import short_repr
from . import thread_connections
from .listener import Listener
from .options import Options
from .outages import is_outage

#: The lease of a lane; each batch renews it, and ends within 20 seconds.
LEASE = RELAY_ALIVE
#: Seconds between two looks at how many relays share the lanes.
SHARING = 5.0
#: A batch begins only if the lease lasts for so many seconds more.
MARGIN = 25.0
#: Seconds between two looks for refused messages that are to be tried again.
REFUSED = 1.0
#: Seconds until a broker or database that is away is tried again; doubled up to the longest.
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
#: A relay that has not reached its broker for so many seconds leaves its lanes to others.
AWAY = 30.0
#: Bytes of the data of a batch; a larger message is published alone. A slow broker would not
#: confirm much more in time; Redis confirms nothing before all is written: it would never get on.
BATCH_BYTES = 4 * 1024 * 1024
#: Turns of a relay with `drain`, if the database is away or locked; with the delays, a minute.
DRAIN_TRIES = 8


class Relays:
    """The relays of one process: one for each broker of the settings."""

    def __init__(self, options: Options) -> None:
        self._relays = [
            Relay(
                broker,
                using=options.using,
                worker=options.name,
                poll=options.poll,
                drain=options.drain,
            )
            for broker in get_settings().brokers.values()
        ]

    def start(self) -> None:
        for relay in self._relays:
            relay.start()

    def stop(self) -> None:
        """Let batches that are under way end, and give the lanes back."""
        for relay in self._relays:
            relay.stop()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of all relays that were started."""
        end = None if seconds is None else monotonic() + seconds
        for relay in self._relays:
            if relay.is_alive():
                relay.join(None if end is None else max(end - monotonic(), 0.0))

    @property
    def is_alive(self) -> bool:
        return any(relay.is_alive() for relay in self._relays)

    @property
    def published(self) -> int:
        return sum(relay.published for relay in self._relays)

    def __len__(self) -> int:
        return len(self._relays)


class Relay(threading.Thread):
    """
    Publishes the outbox to one broker until it is stopped.

    With `drain` it ends when nothing is left to publish, or the broker is away.
    """

    def __init__(
        self, broker: Broker, *, using: str, worker: str, poll: float = 1.0, drain: bool = False
    ) -> None:
        super().__init__(name=f"deadletter-relay-{broker.name}", daemon=True)
        self.broker = broker
        #: Messages that the broker has confirmed, and that became poison records.
        self.published = 0
        self.dead = 0
        self._using = using
        self._worker = worker
        self._poll = poll
        self._drain = drain
        self._token = secrets.token_hex(8)
        self._source = _source_of(broker, using)
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._transport: Transport | None = None
        self._lanes: list[int] = []
        self._share = 0
        #: On the monotonic clock: when the leases were renewed, when the lanes were shared, and
        #: when refused messages were read.
        self._renewed = self._shared = self._refused_read = -LEASE.total_seconds()
        #: Keys whose messages wait for a refused one.
        self._waiting: set[LaneKey] = set()
        #: What is paused, the topics that were and have held messages left, and the first held
        #: message of the keys of the last batch.
        self._pauses = Pauses()
        self._resumed: list[LaneTopic] = []
        self._has_paused = False
        self._paused_keys: dict[LaneKey, int] = {}
        #: What is known of a batch that could not be settled because the database was away.
        self._unsettled: BatchOutcome | None = None
        #: On the monotonic clock: the last confirm that is not reported yet.
        self._confirmed: float | None = None
        #: Since when the broker accepts nothing; None: it does.
        self._away_since: float | None = None
        self._delay = FIRST_DELAY

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def run(self) -> None:
        thread_connections.leave_pools()
        listener = None
        if connections[self._using].vendor == "postgresql":
            listener = Listener(self._using, self.wake, worker=self._worker, channel=OUTBOX_CHANNEL)
            listener.start()
        left = DRAIN_TRIES
        try:
            while not self._stopping.is_set():
                is_over = self.turn()
                left -= 1
                if self._drain and (is_over or not left):
                    break
                if not self._drain and self._woken.wait(self._poll):
                    # Of messages within so many seconds only the first one notifies. Cleared before
                    # the pause: a notification that comes meanwhile needs a pause of its own.
                    self._woken.clear()
                    self._stopping.wait(2 * INTERVAL)
        finally:
            if listener is not None:
                listener.stop()
            self._guarded(self._settle)
            self._guarded(self._end)
            connections.close_all()

    def turn(self) -> bool:
        """Publish until nothing is left; False: the database was away or locked meanwhile."""
        return self._guarded(self._work)

    def _guarded(self, work: Callable[[], object]) -> bool:
        """
        Do some work; wait if the broker or the database is away.

        Returns False if the database did not allow it, which may pass soon.
        """
        try:
            work()
        except BrokerUnavailable as error:
            self._note_unavailable(str(error))
        except LockNotAvailable:
            self._stopping.wait(SHORT_WAIT)
            return False
        except DatabaseError as error:
            connections[self._using].close()
            if is_outage(error):
                self._pause()
                return False
            self._note_failed(error)
        except ImproperlyConfigured as error:
            self._note_unavailable(str(error))
        except BaseException as error:  # noqa: BLE001 - a fault in one turn must not end the relay
            # A transport may raise CancelledError or SystemExit, too, which would end the thread
            # in silence.
            self._note_failed(error)
        return True

    def _work(self) -> None:
        # First, and whether the broker is there or not: another relay, which takes a lane that we
        # give back or lose, would publish it again.
        batch = self._settle()
        self._share_lanes()
        if not self._lanes or self._pauses.is_whole:
            return
        batch = [row for row in batch if row.lane in self._lanes]
        self._connect()
        batch = batch or self._exchange(None)
        while (batch or self._resumed) and not self._stopping.is_set():
            outcome = self._publish(batch)
            if outcome.published or outcome.refused:
                self._note_available()
            batch = self._exchange(outcome)
            if monotonic() - self._shared > SHARING:
                self._share_lanes()
                batch = [row for row in batch if row.lane in self._lanes]
            if self._pauses.is_whole:
                return
        if not batch:
            self._note_available()

    def _share_lanes(self) -> None:
        """Take or give back lanes, and write what is seen of the broker: every few seconds."""
        if monotonic() - self._shared < SHARING and self._lanes:
            return

        def work(tx: Transaction) -> tuple[list[int], set[LaneKey], Pauses, list[LaneTopic]]:
            lanes = share_lanes(
                tx, self.broker.name, token=self._token, worker=self._worker, lease=LEASE
            )
            if self._away_since is None:
                confirmed_at = None
                if self._confirmed is not None:
                    confirmed_at = tx.time() - timedelta(seconds=monotonic() - self._confirmed)
                report_broker(tx, self.broker.name, error=None, confirmed_at=confirmed_at)
            name = self.broker.name
            # After the lanes are taken: whoever held them before may have held messages, too.
            paused = read_paused_topics(tx, name, lanes)
            return lanes, read_waiting_keys(tx, name, lanes), read_pauses(tx, name), paused

        begun = monotonic()
        found = in_transaction(work, using=self._using, wait=SHORT_WAIT)
        self._lanes, self._waiting, self._pauses, paused = found
        self._has_paused = bool(paused or self._pauses)
        self._resumed = [item for item in paused if not self._pauses.cover(item[1])]
        self._renewed = self._shared = begun
        self._confirmed = None
        self._share = self._first_share()

    def _connect(self) -> None:
        """Open the transport. Raises: BrokerUnavailable."""
        if self._transport is None:
            self._transport = self.broker.new_transport()
        self._transport.open()
        if (why := self._transport.blocked()) is not None:
            raise BrokerUnavailable(why)

    def _settle(self) -> list[OutboxRow]:
        """Settle what is known of a batch, if the database was away after it; read the next one."""
        return [] if self._unsettled is None else self._exchange(self._unsettled)

    def _exchange(self, outcome: BatchOutcome | None) -> list[OutboxRow]:
        """Settle a batch and read the next one, in one transaction."""
        self._unsettled = outcome
        is_due = monotonic() - self._refused_read > REFUSED
        begun = monotonic()

        def work(tx: Transaction) -> tuple[Any, list[int], list[OutboxRow], Any]:
            settled = None
            # Also before paused messages go on: only the holder of their lanes may decide that.
            if outcome is not None or self._resumed:
                held = tx.run(
                    "renew_lanes", broker=self.broker.name, token=self._token, lease=LEASE
                )
                lanes = sorted(row[0] for row in held)
            else:
                lanes = self._lanes
            if outcome is not None:
                settled = settle_batch(tx, self.broker, outcome, lanes=lanes, by=self._worker)
            rows: list[OutboxRow] = []
            resumed = None
            if lanes:
                if topics := [item for item in self._resumed if item[0] in lanes]:
                    resumed = resume_held(tx, self.broker.name, topics, share=self._share)
                if is_due:
                    rows = read_refused(tx, self.broker.name, lanes, share=self._share)
                rows += read_batch(tx, self.broker.name, lanes, share=self._share)
                if self._has_paused:
                    keys = {row.lane_key for row in rows if row.lane_key is not None}
                    self._paused_keys = read_paused_keys(tx, self.broker.name, keys)
            return settled, lanes, rows, resumed

        settled, lanes, rows, resumed = in_transaction(work, using=self._using, wait=SHORT_WAIT)
        if resumed is None or not resumed.n:
            self._resumed = []
        else:
            self._waiting |= set(resumed.waiting)
        crash_points.reach("relay.exchanged")
        self._unsettled = None
        if self._away_since is None or (outcome is not None and outcome.published):
            self._delay = FIRST_DELAY
        if is_due:
            self._refused_read = monotonic()
        if outcome is not None and settled is not None:
            self._lanes, self._renewed = lanes, begun
            self._waiting = (self._waiting | set(settled.waiting)) - set(settled.free)
            self.dead += settled.dead
            self.published += len(outcome.published)
        self._adapt_share(rows)
        return rows

    def _publish(self, rows: Sequence[OutboxRow]) -> BatchOutcome:
        """Publish a batch and wait for its confirms; keep what is known if the broker is lost."""
        outcome = BatchOutcome()
        if monotonic() - self._renewed > LEASE.total_seconds() - MARGIN:
            return outcome  # not published: the lease may end before the confirms
        batch: list[OutboxRow] = []
        events: list[CloudEvent] = []
        size = 0
        paused: set[LaneKey] = set()
        for row in rows[: 2 * self.broker.batch]:
            if batch and size + _bytes_of(row) > BATCH_BYTES:
                break  # this one and those behind it are read again
            if self._has_paused and self._is_paused(row, paused):
                outcome.paused.append(row)
                # A retry with a delay holds nobody.
                if row.lane_key is not None and (row.attempts or not row.is_due_again):
                    paused.add(row.lane_key)
                continue
            # A refused message itself is tried again; what is behind it waits.
            if not row.is_due_again and (
                row.lane_key in self._waiting
                or row.lane_key in paused
                or self._is_behind_paused(row)
            ):
                outcome.held.append(row)
                continue
            try:
                events.append(self._event(row))
            except (TypeError, ValueError) as error:
                outcome.refused.append((row, BrokerRefusal.invalid(f"damaged: {error}")))
            else:
                batch.append(row)
                size += _bytes_of(row)

        reported: set[int] = set()

        def report(index: int, refusal: BrokerRefusal | None = None) -> None:
            _check_report(index, refusal, len(batch))
            if index in reported:
                return  # the first report is settled; a second one would count it twice
            reported.add(index)
            if refusal is None:
                outcome.published.append(batch[index])
            else:
                outcome.refused.append((batch[index], refusal))

        transport = self._transport
        if batch and transport is not None:
            try:
                transport.publish(events, report, timeout=self.broker.timeout)
                if len(reported) < len(batch):
                    raise BrokerUnavailable(
                        f"{type(transport).__name__} reported {len(reported)} of {len(batch)} "
                        "events and raised nothing; the others are published again"
                    )
            except BaseException:
                self._close()
                # Settled before the next try: what was confirmed is not published again.
                self._unsettled = outcome
                self._exchange(outcome)
                raise
            finally:
                if outcome.published:
                    # No look at the database's clock: it may be away, and the outcome be lost.
                    self._confirmed = monotonic()
            crash_points.reach("relay.published")
        return outcome

    def _is_paused(self, row: OutboxRow, paused: Set[LaneKey]) -> bool:
        """
        True if the topic of a message is paused.

        Also for a refused message behind a paused one of its key, which is held already: it is not
        read again until its next look at the pauses.
        """
        if self._pauses.cover(row.topic):
            return True
        is_refused = row.is_due_again and row.attempts > 0
        return is_refused and (row.lane_key in paused or self._is_behind_paused(row))

    def _is_behind_paused(self, row: OutboxRow) -> bool:
        """True if a message of the key before this one is paused."""
        first = None if row.lane_key is None else self._paused_keys.get(row.lane_key)
        return first is not None and first < row.id

    def _event(self, row: OutboxRow) -> CloudEvent:
        """Return a row as an event. Raises: TypeError or ValueError, if the row is damaged."""
        if row.payload is None:
            raise TypeError("there is no payload")
        headers: Any = {}
        trace: dict[str, str | None] = {}
        if row.headers is not None:
            headers = json.loads(row.headers)
            if not isinstance(headers, dict) or not all(
                isinstance(text, str) for text in headers.values()
            ):
                raise TypeError("the headers are no object of texts")
            trace = {name: headers.pop(name, None) for name in tracing.FIELDS}
        return CloudEvent(
            id=str(row.id),
            topic=row.topic,
            source=self._source,
            time=row.created_at,
            data=row.payload,
            key=row.key,
            headers=headers,
            **trace,
        )

    def _first_share(self) -> int:
        return max(-(-self.broker.batch // max(len(self._lanes), 1)), 1)

    def _adapt_share(self, rows: Sequence[OutboxRow]) -> None:
        """Read more of each lane when a few lanes have most messages, and fewer when all have."""
        size = sum(map(_bytes_of, rows))
        if size > BATCH_BYTES:
            self._share = max(self._share * BATCH_BYTES // size, 1)
        elif len(rows) >= 2 * self.broker.batch:
            self._share = max(self._share // 2, self._first_share())
        elif len(rows) < self.broker.batch:
            by_lane: dict[int, int] = {}
            for row in rows:
                by_lane[row.lane] = by_lane.get(row.lane, 0) + 1
            if 2 * size > BATCH_BYTES:
                return
            if any(count >= self._share for count in by_lane.values()):
                self._share = min(self._share * 2, self.broker.batch)

    def _note_unavailable(self, why: str) -> None:
        """Wait for the broker: nothing is counted. After a while other relays may try."""
        now = monotonic()
        if self._away_since is None:
            self._away_since = now
            event(
                logging.WARNING,
                "broker_unavailable",
                "broker {broker} accepts nothing; its messages wait in the outbox: {error}",
                broker=self.broker.name,
                worker=self._worker,
                error=why,
            )
        self._close()

        def work(tx: Transaction) -> None:
            report_broker(tx, self.broker.name, error=why)
            if now - (self._away_since or now) > AWAY:
                leave_lanes(tx, self.broker.name, token=self._token)

        self._guarded_report(work)
        if now - self._away_since > AWAY:
            self._lanes = []
        self._pause()

    def _note_failed(self, error: BaseException) -> None:
        """Report a fault of the relay, its transport or a statement; its text may have secrets."""
        crash(
            "relay_failed",
            "the relay of {broker} failed",
            error,
            broker=self.broker.name,
            worker=self._worker,
        )
        name = type(error).__name__
        self._note_unavailable(f"the relay failed: {name}; its log has the traceback")

    def _note_available(self) -> None:
        """Report, if the broker was away: a connection is not enough, as long as messages wait."""
        if self._away_since is None:
            return
        away = monotonic() - self._away_since
        self._away_since = None
        self._delay = FIRST_DELAY
        event(
            logging.INFO,
            "broker_available",
            "broker {broker} accepts messages again, after {seconds:.0f} s",
            broker=self.broker.name,
            worker=self._worker,
            seconds=away,
        )
        self._guarded_report(lambda tx: report_broker(tx, self.broker.name, error=None))

    def _guarded_report(self, work: Callable[[Transaction], None]) -> None:
        try:
            in_transaction(work, using=self._using, wait=SHORT_WAIT)
        except (DatabaseError, LockNotAvailable):
            connections[self._using].close()

    def _pause(self) -> None:
        self._stopping.wait(self._delay * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _close(self) -> None:
        if self._transport is None:
            return
        try:
            self._transport.close()
        except Exception as error:  # noqa: BLE001 - it must not raise; the relay goes on if it does
            self._transport = None
            crash(
                "relay_failed",
                "the transport of {broker} cannot close",
                error,
                broker=self.broker.name,
                worker=self._worker,
            )

    def _end(self) -> None:
        self._close()
        in_transaction(
            lambda tx: leave_lanes(tx, self.broker.name, token=self._token), using=self._using
        )


def _source_of(broker: Broker, using: str) -> str:
    """Return the attribute `source`; each database counts its own ids, so each has its own."""
    source = broker.source or f"/{settings.ROOT_URLCONF.partition('.')[0]}"
    return source if using == primary_alias() else f"{source.rstrip('/')}/{using}"


def _bytes_of(row: OutboxRow) -> int:
    return len(row.payload or "") + len(row.headers or "")


def _check_report(index: object, refusal: object, length: int) -> None:
    """Refuse what a transport must not report. The error goes to the transport."""
    if type(index) is not int or not 0 <= index < length:
        raise IndexError(f"report: the batch has {length} events, and none at {short_repr(index)}")
    if refusal is not None and not (
        isinstance(refusal, BrokerRefusal) and isinstance(refusal.reason, FailureReason)
    ):
        raise TypeError(f"report: expected a BrokerRefusal, got {short_repr(refusal)}")
