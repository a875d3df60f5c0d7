"""The parts that the actors of an interleaving play, and what they record."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deadletter import Outgoing, lifecycle, operations
from deadletter.clock import FrozenClock
from deadletter.lifecycle import ClaimRequest, Completion, Failure, KeptResult, LeaseLost
from deadletter.lifecycle.enqueue import store_message
from deadletter.models import Message, PoisonRecord

QUEUE = "q"
STREAMS = ("a", "a", "a", "b", None)


@dataclass
class Story:
    """What was said to the players; only one of them moves at a time."""

    clock: FrozenClock
    #: The kind of all messages.
    kind: str = "message"
    sent: set[int] = field(default_factory=set)
    completed: list[int] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    #: Claims less refunds of each message since it was sent or last put back.
    attempts: Counter[int] = field(default_factory=Counter)
    released: set[int] = field(default_factory=set)
    #: What was completed with a result.
    kept: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


class Worker:
    """Claims and reports in any way there is; sometimes too late, sometimes never."""

    def __init__(self, name: str, story: Story, chance: random.Random, turns: int) -> None:
        self.name, self.story, self.chance, self.turns = name, story, chance, turns
        self.held: list[Any] = []
        self.token = ""
        #: As if it had been held up before: it tries, and comes back for what is busy.
        self.careful = chance.random() < 0.5

    def __call__(self) -> None:
        for _ in range(self.turns):
            if not self.held:
                self.claim()
            else:
                ways = [self.complete, self.fail, self.release, self.renew, self.batch, self.keep]
                self.chance.choice([*ways, self.complete, self.batch, self.forget])()

    def claim(self) -> None:
        limit = self.chance.randint(1, 4)
        batch = lifecycle.claim([QUEUE], limit=limit, worker=self.name, lease=60)
        self.took(batch)

    def took(self, batch: Any) -> None:
        """What a claim returned is counted once, whatever becomes of it."""
        self.token, self.held = batch.token, list(batch.messages)
        for message in batch.messages:
            self.story.attempts[message.id] += 1
            if self.story.attempts[message.id] != message.attempt:
                self.story.problems.append(
                    f"{self.name} got {message.id} with attempt {message.attempt}, "
                    f"not {self.story.attempts[message.id]}"
                )

    def some(self) -> list[Any]:
        count = self.chance.randint(1, len(self.held))
        some, self.held = self.held[:count], self.held[count:]
        return some

    def complete(self) -> None:
        some = [message.id for message in self.some()]
        lost = self.reported(lambda: lifecycle.complete(self.token, some))
        self.story.completed += [id for id in some if id not in lost]

    def keep(self) -> None:
        """Complete some with results and some without; what the message is may not be known."""
        self.process(completions=[self.completion(message) for message in self.some()])

    def completion(self, message: Any) -> Completion:
        result = KeptResult("1", None) if self.chance.random() < 0.7 else None
        known = message if self.chance.random() < 0.5 else None
        return Completion(message.id, seconds=0.5, message=known, result=result)

    def fail(self) -> None:
        delay = self.chance.choice([0, 0, 30])
        # One failure ends a run: the rest is given back, as the worker does.
        first, *rest = self.held
        self.held = []
        self.process(
            failures=[Failure(first.id, error="x", delay=delay)],
            releases=[message.id for message in rest],
        )

    def release(self) -> None:
        some = [message.id for message in self.some()]
        by_name = self.chance.random() < 0.3
        lost = self.reported(lambda: lifecycle.release(self.token, some, by_name=by_name))
        self.refunded(some, lost)
        if by_name:
            self.story.released |= set(some)

    def renew(self) -> None:
        ids = [message.id for message in self.held]
        lost = self.reported(lambda: lifecycle.renew(self.token, ids, lease=60))
        self.held = [message for message in self.held if message.id not in lost]

    def batch(self) -> None:
        """Report all and claim more, as the pump does."""
        cut = self.chance.randint(0, len(self.held))
        self.process(
            completions=[self.completion(message) for message in self.held[:cut]],
            releases=[message.id for message in self.held[cut:]],
            claim=ClaimRequest([QUEUE], 3, 60),
        )

    def process(
        self,
        completions: Sequence[Completion] = (),
        failures: Sequence[Failure] = (),
        releases: Sequence[int] = (),
        claim: ClaimRequest | None = None,
    ) -> None:
        """Report until nothing is busy any more."""
        token, careful = self.token, self.careful
        while True:
            batch = lifecycle.process_batch(
                worker=self.name,
                token=token,
                completions=completions,
                failures=failures,
                releases=releases,
                claim=claim,
                careful=careful,
            )
            busy = set(batch.busy)
            left = {*batch.lost, *busy}
            done = [item for item in completions if item.id not in left]
            self.story.completed += [item.id for item in done]
            self.story.kept |= {item.id for item in done if item.result is not None}
            self.refunded(releases, left)
            if claim is not None:
                self.took(batch)
            if not busy:
                return
            completions = [item for item in completions if item.id in busy]
            failures = [item for item in failures if item.id in busy]
            releases = [id for id in releases if id in busy]
            claim, careful = None, True

    def forget(self) -> None:
        """Die, or sleep until the lease is over: then somebody else is handed the same."""
        if self.chance.random() < 0.5:
            self.held = []
        self.story.clock.advance(61)

    def refunded(self, ids: Iterable[int], lost: set[int]) -> None:
        for id in ids:
            if id not in lost:
                self.story.attempts[id] = max(self.story.attempts[id] - 1, 0)

    def reported(self, call: Any) -> set[int]:
        try:
            call()
        except LeaseLost as error:
            return set(error.ids)
        return set()


class Sender:
    def __init__(self, story: Story, chance: random.Random, turns: int) -> None:
        self.story, self.chance, self.turns = story, chance, turns

    def __call__(self) -> None:
        for _ in range(self.turns):
            item = Outgoing("m", stream=self.chance.choice(STREAMS))
            stored = store_message(item, queue=QUEUE, kind=self.story.kind)
            self.story.sent.add(stored.message.id)


class Operator:
    """Retries and removes poison, releases and removes messages."""

    def __init__(self, story: Story, chance: random.Random, turns: int) -> None:
        self.story, self.chance, self.turns = story, chance, turns

    def __call__(self) -> None:
        for _ in range(self.turns):
            self.chance.choice([self.retry, self.remove_poison, self.release, self.poison])()

    def retry(self) -> None:
        for key, id in list(PoisonRecord.objects.values_list("pk", "message_id")[:2]):
            if key in operations.retry_poison([key]).retried:
                # Its place in the stream may be behind what has passed since.
                self.story.attempts[id] = 0

    def remove_poison(self) -> None:
        for key, id in list(PoisonRecord.objects.values_list("pk", "message_id")[:1]):
            if key in operations.remove_poison([key]).removed:
                self.story.removed.add(id)

    def release(self) -> None:
        ids = list(Message.objects.order_by("pk").values_list("pk", flat=True)[:3])
        self.story.released |= set(operations.release(ids).done)

    def poison(self) -> None:
        ids = list(Message.objects.order_by("pk").values_list("pk", flat=True)[:1])
        operations.poison(ids, why="by hand")
