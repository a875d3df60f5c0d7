"""The checker's rules for events: each kind of violation, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from .event_checker import EventRemains, EventVerdict, check_events
from .topics import REFUSED

pytestmark = pytest.mark.process

TOPIC = "chaos.orders"
UNEXPLAINED = (
    "unexplained: event 1 was confirmed to process 1 and published again by 2 though nothing had "
    "happened to the first"
)


class EventStory:
    """Writes a history by hand; every line is one second after the last."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def tell(self, what: str, pid: int = 1, **fields: Any) -> EventStory:
        self.lines.append({"what": what, "at": float(len(self.lines)), "pid": pid, **fields})
        return self

    def offered(
        self, what: str, *ids: int, key: str | None = "k", topic: str = TOPIC
    ) -> EventStory:
        told = [[tag(id), key, topic] for id in ids]
        self.tell("attempted", events=told)
        if what == "acked":
            return self.tell("acked", tags=[], ids=[], events={tag(id): id for id in ids})
        return self.tell(what, events=told)

    def stored(self, *ids: int, **options: Any) -> EventStory:
        return self.offered("acked", *ids, **options)

    def published(
        self, *ids: int, pid: int = 1, lost: bool = False, refused: tuple[int, ...] = ()
    ) -> EventStory:
        """Let a relay publish a batch; `lost`: it learns nothing of it."""
        self.tell("publishing", pid, ids=[*ids, *refused])
        return self.tell("confirmed", pid, ids=[] if lost else [*ids], refused=[*refused])

    def arrived(self, *ids: int, key: str | None = "k", **changes: Any) -> EventStory:
        for id in ids:
            known = {"id": id, "tag": tag(id), "header": tag(id), "key": key, "topic": TOPIC}
            known |= {"place": "queue", "redelivered": False}
            self.tell("arrived", **known | changes)
        return self

    def fault(self, kind: str = "kill", pids: list[int] | None = None) -> EventStory:
        return self.tell("fault", kind=kind, pids=pids, until=float(len(self.lines)))

    def verdict(self, **remains: Any) -> EventVerdict:
        return check_events(self.lines, EventRemains(**remains))


def tag(id: int) -> str:
    return f"e{id}"


@pytest.fixture
def story() -> EventStory:
    return EventStory()


def test_a_quiet_day_has_no_violations(story: EventStory):
    story.stored(1, 2).published(1, 2).arrived(1, 2).stored(3, topic=REFUSED)
    story.offered("withdrawn", 4).offered("unknown", 5, 6).published(5).arrived(5)

    verdict = story.verdict(poison=[(3, tag(3))])

    assert verdict.violations == []
    assert str(verdict) == (
        "events stored 3, arrived 3, refused 1, removed 0, recovered 1, duplicates 0"
    )


def test_a_stored_event_that_is_nowhere_is_lost(story: EventStory):
    story.stored(1, 2).published(1, 2).arrived(2)

    assert story.verdict().violations == ["lost: event e1 was stored and did not arrive"]


@pytest.mark.parametrize("what", ["removed", "removing"])
def test_what_an_operator_removed_is_not_lost(story: EventStory, what: str):
    story.stored(1, topic=REFUSED).tell(what, ids=[9], events=[1])

    assert story.verdict().violations == []


def test_what_was_rolled_back_or_never_published_is_a_ghost(story: EventStory):
    story.offered("withdrawn", 1).published(1, 2).arrived(1, 2)

    assert story.verdict().violations == [
        "ghost: event e2 was never published",
        "ghost: event e1 was rolled back",
    ]


def test_a_ghost_among_poison_is_seen(story: EventStory):
    story.offered("withdrawn", 1, topic=REFUSED)

    assert story.verdict(poison=[(1, tag(1))]).violations == ["ghost: event e1 was rolled back"]


def test_the_first_arrivals_of_a_key_are_in_order(story: EventStory):
    story.stored(1, 2, 3).published(1, 2, 3).arrived(1, 3, 2)

    assert story.verdict().violations == ["overtaken: event e2 of key k arrived behind e3"]


def test_a_later_arrival_and_events_without_a_key_have_no_order(story: EventStory):
    story.stored(1, 2).published(1, 2, lost=True).published(1, 2).arrived(1, 2, 1, 2)
    story.stored(3, 4, key=None).published(3, 4).arrived(4, 3, key=None)

    verdict = story.verdict()

    assert verdict.violations == []
    assert verdict.duplicates == 2


def test_what_was_confirmed_is_not_published_again(story: EventStory):
    story.stored(1).published(1).published(1, pid=2).arrived(1, 1)

    assert story.verdict().violations == [UNEXPLAINED]


@pytest.mark.parametrize("pids", [[1], None], ids=["the relay", "everybody"])
def test_a_relay_that_was_hit_behind_its_confirm_explains_a_duplicate(
    story: EventStory, pids: list[int] | None
):
    story.stored(1).published(1).fault(pids=pids).published(1, pid=2).arrived(1, 1)

    verdict = story.verdict()

    assert (verdict.violations, verdict.duplicates) == ([], 1)


def test_a_fault_of_another_process_or_another_time_explains_nothing(story: EventStory):
    story.stored(1).fault(pids=[1]).published(1).fault(pids=[3]).published(1, pid=2)
    story.arrived(1, 1).fault(pids=[1])

    assert [line.split(":")[0] for line in story.verdict().violations] == ["unexplained"]


def test_a_fault_after_the_relay_has_gone_on_explains_nothing(story: EventStory):
    """A relay settles a batch before it publishes the next one."""
    story.stored(1, 2).published(1).published(2).fault().published(1, pid=2).arrived(1, 2, 1)

    assert story.verdict().violations == [UNEXPLAINED]


def test_a_batch_that_ended_with_its_process_was_not_confirmed(story: EventStory):
    story.stored(1).tell("publishing", 1, ids=[1]).published(1, pid=2).arrived(1, 1)

    assert story.verdict().violations == []


def test_more_arrivals_than_tries_are_a_violation(story: EventStory):
    story.stored(1).published(1).arrived(1, 1)

    assert story.verdict().violations == [
        "surplus: event 1 was published 1 times and arrived 2 times"
    ]


def test_what_the_broker_gives_its_reader_again_is_no_duplicate(story: EventStory):
    story.stored(1).published(1).arrived(1).arrived(1, redelivered=True)

    verdict = story.verdict()

    assert (verdict.violations, verdict.duplicates) == ([], 0)


def test_a_first_arrival_counts_also_if_the_broker_says_that_it_gave_it_before(story: EventStory):
    story.stored(1).published(1).arrived(1, redelivered=True)

    assert story.verdict().violations == []


def test_a_refused_event_ends_as_one_record_and_arrives_nowhere(story: EventStory):
    story.stored(1, 2, topic=REFUSED).published(1).arrived(1, topic=REFUSED)

    assert story.verdict(poison=[(2, tag(2)), (2, tag(2))]).violations == [
        "doubled: event e2 has 2 records",
        "refused: event e1 arrived, and its topic is not read",
    ]


def test_nothing_else_ends_as_poison(story: EventStory):
    story.stored(1, 2).published(1).arrived(1)

    assert story.verdict(poison=[(1, tag(1)), (2, tag(2))]).violations == [
        "refused: event e1 is poison, and its topic is read",
        "refused: event e2 is poison, and its topic is read",
        "two places: event e1 arrived and is poison",
    ]


def test_an_event_has_one_id_and_keeps_what_it_was_published_with(story: EventStory):
    story.stored(1).published(1, 7).arrived(1, key="other").arrived(7, tag=tag(1), header="e7")

    assert story.verdict().violations == [
        "changed: event e1 arrived as other chaos.orders",
        "changed: event e1 arrived with the header of e7",
        "doubled: event e1 has ids [1, 7]",
    ]


def test_what_is_left_in_the_outbox_is_a_violation(story: EventStory):
    story.stored(1)

    assert story.verdict(outbox=[(1, tag(1))]).violations == [
        "not drained: event e1 is still in the outbox"
    ]
