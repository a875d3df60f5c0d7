"""A checker that cannot turn red proves nothing: each kind of violation, and what is none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .checker import Line, Remains, check

pytestmark = pytest.mark.process


class Story:
    """Writes a history by hand; every line is one second after the last."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def tell(self, what: str, **fields: Any) -> Story:
        self.lines.append({"what": what, "at": float(len(self.lines)), "pid": 1, **fields})
        return self

    def sent(self, *ids: int) -> Story:
        tags = [tag(id) for id in ids]
        return self.tell("attempted", tags=tags).tell("acked", tags=tags, ids=list(ids))

    def handled(self, what: str, id: int, fence: int = 1, **fields: Any) -> Story:
        known = {"name": "chaos.work", "stream": None, "attempt": fence, **fields}
        return self.tell(what, id=id, tag=tag(id), fence=fence, **known)

    def done(self, id: int, fence: int = 1, **fields: Any) -> Story:
        return self.handled("start", id, fence, **fields).handled("finish", id, fence, **fields)

    def failed(self, id: int, fence: int = 1, **fields: Any) -> Story:
        return self.handled("start", id, fence, **fields).handled("failed", id, fence, **fields)

    def fault(self, kind: str = "kill", pids: list[int] | None = None) -> Story:
        return self.tell("fault", kind=kind, pids=pids, until=float(len(self.lines)))

    def violations(
        self, max_attempts: int = 3, lease: float = math.inf, **remains: Any
    ) -> list[str]:
        left = Remains(**remains)
        return check(self.lines, left, max_attempts=max_attempts, lease=lease).violations


def tag(id: int) -> str:
    return f"m{id}"


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_stage_is_no_duplicate_and_has_attempts_of_its_own(story: Story):
    story.sent(1).failed(1).failed(1, 2).handled("start", 1, 3).handled("stage", 1, 3)
    story.failed(1, 4).failed(1, 5).done(1, 6)

    assert story.violations() == []

    story.done(1, 7)
    assert "started too often: m1 4 times" in story.violations()


def test_a_quiet_day_has_no_violations(story: Story):
    story.sent(1, 2, 3).done(1).failed(2).done(2, 2).failed(3).failed(3, 2).failed(3, 3)

    verdict = check(story.lines, Remains(poison=[(3, "m3")]), max_attempts=3)

    assert verdict.violations == []
    assert (verdict.sent, verdict.finished, verdict.poison, verdict.duplicates) == (3, 2, 1, 0)


def test_an_acknowledged_message_that_is_nowhere_is_lost(story: Story):
    story.sent(1, 2).done(1).handled("start", 2)

    assert story.violations() == ["lost: m2 was acknowledged"]


def test_a_message_whose_sender_learnt_nothing_may_be_there_or_not(story: Story):
    story.tell("attempted", tags=["m1", "m2"]).tell("unknown", tags=["m1", "m2"]).done(1)

    verdict = check(story.lines, Remains(), max_attempts=3)

    assert verdict.violations == []
    assert verdict.recovered == 1


def test_a_message_that_nobody_sent_is_a_ghost(story: Story):
    assert story.done(1).violations() == ["ghost: m1 was never sent"]


def test_a_message_of_a_transaction_that_was_rolled_back_is_a_ghost(story: Story):
    story.tell("attempted", tags=["m1"]).tell("withdrawn", tags=["m1"])

    assert story.violations(poison=[(1, "m1")]) == ["ghost: m1 was rolled back"]


def test_a_message_in_the_queue_and_in_quarantine_is_in_two_places(story: Story):
    story.sent(1)

    found = story.violations(queued=[(1, "m1")], poison=[(1, "m1")])

    assert "two places: m1 is in the queue and poison" in found
    assert "not drained: m1 is still queued" in found


def test_one_order_that_became_two_messages_is_doubled(story: Story):
    story.sent(1).done(1).tell("start", id=2, tag="m1", fence=1, name="chaos.work", stream=None)

    assert story.violations() == ["doubled: m1 has ids [1, 2]"]


def test_a_message_that_finished_and_died_needs_a_fault(story: Story):
    story.sent(1).failed(1).failed(1, 2).done(1, 3)

    found = story.violations(poison=[(1, "m1")])
    explained = story.fault("kill", [1]).violations(poison=[(1, "m1")])

    assert found == ["two places: m1 finished and is poison, and no fault explains it"]
    assert explained == []


def test_an_atomic_effect_happens_once_and_never_to_poison(story: Story):
    story.sent(1, 2).done(1, name="chaos.effect").done(2, name="chaos.effect")

    found = story.violations(effects={1: 2, 2: 1}, poison=[(2, "m2")])

    assert "effect of m1 happened 2 times" in found
    assert "two places: m2 had its effect and is poison" in found


def test_an_atomic_handler_whose_effect_is_missing_has_lost_its_message(story: Story):
    story.sent(1).done(1, name="chaos.effect")

    assert story.violations() == ["lost: m1 was acknowledged"]


def test_more_starts_than_attempts_are_a_violation(story: Story):
    story.sent(1).failed(1, 1).failed(1, 2).failed(1, 3).failed(1, 4)

    found = story.violations(poison=[(1, "m1")])

    assert found == ["started too often: m1 4 times"]


def test_an_operators_retry_begins_a_new_count(story: Story):
    story.sent(1).failed(1, 1).failed(1, 2).failed(1, 3)
    story.tell("retrying", ids=[1], fences={"1": 3}).failed(1, 4).failed(1, 5).failed(1, 6)

    assert story.violations(poison=[(1, "m1")]) == []
    assert story.failed(1, 7).violations(poison=[(1, "m1")]) == ["started too often: m1 4 times"]


def test_one_claim_that_starts_a_handler_twice_is_a_violation(story: Story):
    story.sent(1).failed(1, 1).done(1, 1)

    assert story.violations() == ["started twice: m1 under fence 1"]


def test_a_later_message_of_a_stream_must_not_start_first(story: Story):
    story.sent(1, 2).done(2, stream="a").done(1, stream="a")

    assert story.violations() == ["overtaken: m2 started before m1 had finished in stream a"]


def test_a_stream_goes_on_without_what_died(story: Story):
    story.sent(1, 2).failed(1, stream="a").done(2, stream="a")

    assert story.violations(poison=[(1, "m1")]) == []
    assert story.violations(queued=[(1, "m1")])[-1].startswith("overtaken: m2")


def test_streams_have_no_order_between_them(story: Story):
    story.sent(1, 2).done(2, stream="a").done(1, stream="b")

    assert story.violations() == []


def test_a_second_start_for_no_reason_is_a_violation(story: Story):
    story.sent(1).done(1, 1).done(1, 2)

    assert [text[:15] for text in story.violations()] == ["unexplained: m1"]


@pytest.mark.parametrize("pids", [[1], None])
def test_a_fault_of_its_process_or_of_all_explains_a_second_start(story: Story, pids: Any):
    story.sent(1).done(1, 1).fault("kill", pids).done(1, 2)

    verdict = check(story.lines, Remains(), max_attempts=3)

    assert verdict.violations == []
    assert verdict.duplicates == 1


def test_a_fault_of_another_process_explains_nothing(story: Story):
    story.sent(1).done(1, 1).fault("kill", [2]).done(1, 2)

    assert len(story.violations()) == 1


def test_a_fault_that_was_over_explains_nothing(story: Story):
    story.fault().sent(1).done(1, 1).done(1, 2)

    assert len(story.violations()) == 1


def test_a_cut_connection_explains_a_second_start_of_an_atomic_handler_only(story: Story):
    story.sent(1, 2).done(1, 1).done(2, 1, name="chaos.effect").fault("cut_before", [1])
    story.done(1, 2).done(2, 2, name="chaos.effect")

    found = story.violations(effects={2: 1})

    assert [text[:15] for text in found] == ["unexplained: m1"]


def test_a_lease_the_worker_itself_gave_up_for_lost_explains_a_second_start(story: Story):
    story.sent(1).done(1, 1).done(1, 2)

    assert story.violations(leases_lost=frozenset([1])) == []


@pytest.mark.parametrize("kind", ["kill", "handler"])
def test_a_process_that_died_before_it_could_say_so_explains_a_second_start(
    story: Story, kind: str
):
    # Started at 2 by process 1 and at 4 by process 2; process 1 dies at 6.
    story.sent(1).done(1, 1).done(1, 2, pid=2).fault(kind, [1])

    assert story.violations(lease=2.0) == []


@pytest.mark.parametrize(
    ("kind", "pid", "lease"),
    [
        pytest.param("stop", 1, 2.0, id="it lived, and could say so later"),
        pytest.param("kill", 2, 2.0, id="another one died"),
        pytest.param("kill", 1, 2.1, id="the lease was not yet over"),
        pytest.param("kill", 1, 1.9, id="it died so late that it could have said so"),
    ],
)
def test_a_process_that_was_not_silenced_explains_nothing(
    story: Story, kind: str, pid: int, lease: float
):
    story.sent(1).done(1, 1).done(1, 2, pid=2).fault(kind, [pid])

    assert [text[:15] for text in story.violations(lease=lease)] == ["unexplained: m1"]


def test_what_an_operator_removed_is_not_lost(story: Story):
    story.sent(1, 2).failed(1).failed(2).tell("removing", ids=[1, 2])

    # The first is known to be gone; of the second nobody knows.
    story.tell("removed", ids=[1])

    assert story.violations() == []
