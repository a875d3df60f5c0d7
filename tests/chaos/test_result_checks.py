"""The checker on tasks: each way in which a result can be wrong, and what is right."""

from __future__ import annotations

from typing import Any

import pytest

from .checker import StoredResult
from .test_checker import Story, tag

pytestmark = pytest.mark.process

WORK, EFFECT = "tests.chaos.tasks.work", "tests.chaos.tasks.effect"


class TaskStory(Story):
    def enqueued(self, *ids: int) -> TaskStory:
        tags = [tag(id) for id in ids]
        self.tell("attempted", tags=tags, tasks=tags).tell("acked", tags=tags, ids=list(ids))
        return self

    def told(self, id: int, status: str = "SUCCESSFUL") -> TaskStory:
        self.tell("told", id=id, status=status)
        return self


@pytest.fixture
def story() -> TaskStory:
    return TaskStory()


def result(id: int, outcome: str = "successful", fence: int | None = 1) -> StoredResult:
    return StoredResult(id, tag(id), outcome, fence)


def read(*ids: int, status: str | None = "SUCCESSFUL") -> dict[int, str | None]:
    return dict.fromkeys(ids, status)


def test_a_task_that_finished_has_its_result(story: TaskStory):
    story.enqueued(1, 2).done(1, name=WORK).failed(2, name=WORK).done(2, 2, name=WORK)
    story.told(1)

    results = [result(1), result(2, fence=2)]
    assert story.violations(results=results, statuses=read(1, 2)) == []


def test_a_task_that_is_gone_without_a_result_is_a_violation(story: TaskStory):
    story.enqueued(1).done(1, name=WORK)

    assert story.violations() == ["no result: task m1 is gone without one"]


def test_a_task_that_was_started_without_an_answer_needs_a_result_too(story: TaskStory):
    story.tell("attempted", tags=["m1"], tasks=["m1"]).tell("unknown", tags=["m1"])
    story.done(1, name=WORK)

    assert story.violations() == ["no result: task m1 is gone without one"]


@pytest.mark.parametrize("place", ["queued", "poison"])
def test_a_result_beside_its_message_is_too_early(story: TaskStory, place: str):
    story.enqueued(1).done(1, name=WORK).fault()
    left: dict[str, Any] = {place: [(1, tag(1))]}

    found = story.violations(results=[result(1)], **left)

    assert "early result: m1 is successful and still there" in found


def test_a_task_that_died_has_no_result(story: TaskStory):
    story.enqueued(1).failed(1, name=WORK).told(1, "FAILED")

    poison = [(1, tag(1))]
    assert story.violations(poison=poison, statuses=read(1, status="FAILED")) == []


def test_two_results_of_one_task_are_a_violation(story: TaskStory):
    story.enqueued(1).done(1, name=WORK)
    second = StoredResult(2, tag(1), "successful", 1)

    found = story.violations(results=[result(1), second])

    assert "two results: m1 has 2" in found


def test_a_success_that_nobody_finished_is_false(story: TaskStory):
    story.enqueued(1).failed(1, name=WORK).done(1, 2, name=WORK)

    found = story.violations(results=[result(1, fence=1)], statuses=read(1))

    assert found == ["false result: m1 never finished under fence 1"]


def test_a_success_of_an_atomic_task_needs_its_effect(story: TaskStory):
    story.enqueued(1, 2).done(1, name=EFFECT).done(2, name=EFFECT)

    found = story.violations(effects={1: 1}, results=[result(1), result(2)], statuses=read(1, 2))

    assert "false result: m2 had no effect and is successful" in found
    assert not [line for line in found if "m1" in line]


def test_a_task_that_had_its_effect_was_not_given_up(story: TaskStory):
    story.enqueued(1).done(1, name=EFFECT)
    gone = result(1, "removed", None)

    found = story.violations(effects={1: 1}, results=[gone], statuses=read(1, status="FAILED"))

    assert found == ["false result: m1 is removed and had its effect"]


def test_a_task_that_was_discarded_is_not_lost(story: TaskStory):
    story.enqueued(1).failed(1, name=WORK).told(1, "FAILED")
    gone = result(1, "removed", None)

    assert story.violations(results=[gone], statuses=read(1, status="FAILED")) == []


def test_a_task_that_nobody_started_or_removed_was_not_given_up(story: TaskStory):
    story.enqueued(1)
    gone = result(1, "removed", None)

    found = story.violations(results=[gone], statuses=read(1, status="FAILED"))

    assert found == ["false result: m1 is removed and nobody gave it up"]


@pytest.mark.parametrize("status", ["READY", "FAILED", None])
def test_a_result_that_is_read_as_something_else_is_a_violation(
    story: TaskStory, status: str | None
):
    story.enqueued(1).done(1, name=WORK)

    found = story.violations(results=[result(1)], statuses=read(1, status=status))

    assert found == [f"misread: m1 is read as {status}"]


def test_a_result_that_could_not_be_read_on_the_way_is_a_violation(story: TaskStory):
    story.enqueued(1).tell("unread", id=1).done(1, name=WORK)

    found = story.violations(results=[result(1)], statuses=read(1))

    assert found == ["misread: m1 was there and not found"]


def test_a_success_is_announced_once_and_only_if_it_is_one(story: TaskStory):
    story.enqueued(1, 2).done(1, name=WORK).told(1).told(1).failed(2, name=WORK).told(2)
    statuses = read(1) | read(2, status="FAILED")

    found = story.violations(results=[result(1)], poison=[(2, tag(2))], statuses=statuses)

    assert found == [
        "announced: m1 succeeded 2 times",
        "announced: m2 is SUCCESSFUL, and that is not true",
    ]


def test_a_death_is_announced_only_of_what_died(story: TaskStory):
    story.enqueued(1).done(1, name=WORK).told(1, "FAILED")

    found = story.violations(results=[result(1)], statuses=read(1))

    assert found == ["announced: m1 is FAILED, and that is not true"]
