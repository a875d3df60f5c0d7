"""Folds, settles, adoptions and people at the same groups: nobody waits, all is counted once."""

from __future__ import annotations

from threading import Thread

import pytest
from django.db import connections, transaction

from deadletter import crash_points, send
from deadletter.fingerprints import fingerprint
from deadletter.lifecycle import Failure, claim, fail
from deadletter.lifecycle.group_adoption import adopt_all_groups, adopt_groups
from deadletter.lifecycle.groups import fold_all_groups, fold_groups
from deadletter.models import FailureGroup, GroupChange, GroupHour, GroupTag, PoisonRecord

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

postgresql = pytest.mark.postgresql_only(reason="SQLite has one writer at a time")

TAGS = [("tenant", "a")]


def fail_one(name: str = "m", exception: str = "shop.Boom", **options) -> None:
    send(name, queue="q")
    batch = claim(["q"], worker="w")
    options = {"delay": "30d", "tags": TAGS, **options}
    fail(batch.token, [Failure(id, error="x", exception=exception, **options) for id in batch.ids])


def numbers() -> dict[str, int]:
    return dict(FailureGroup.objects.order_by("pk").values_list("fingerprint", "failures"))


BOOM, OTHER = fingerprint("m", "shop.Boom"), fingerprint("m", "shop.Other")


@postgresql
def test_of_two_folds_the_second_does_not_wait_and_adds_nothing(queue, stage, repeated):
    fail_one()
    first = stage(fold_groups, after="update_groups")

    assert fold_groups() == 0
    assert first.go().result() == 1
    assert fold_groups() == 0
    assert numbers() == {BOOM: 1}
    assert repeated == []


@postgresql
def test_a_settle_does_not_wait_for_a_fold_of_its_group(queue, stage, repeated):
    fail_one()
    folding = stage(fold_groups, after="add_to_group_tags")

    fail_one()
    assert folding.go().result() == 1
    assert fold_groups() == 1
    assert numbers() == {BOOM: 2}
    assert repeated == []


@postgresql
def test_a_fold_leaves_a_group_that_a_person_is_changing(queue, stage):
    fail_one()
    fold_groups()
    fail_one()
    fail_one(exception="shop.Other")

    with transaction.atomic():
        FailureGroup.objects.select_for_update().get()
        assert stage(fold_groups).result() == 1
        assert stage(fold_groups).result() == 0
    assert numbers() == {BOOM: 1, OTHER: 1}

    assert fold_groups() == 1
    assert numbers() == {BOOM: 2, OTHER: 1}


@postgresql
def test_a_fold_leaves_groups_whose_main_group_a_person_is_changing(queue, stage):
    fail_one()
    fail_one(exception="shop.Other")
    fold_groups()
    FailureGroup.objects.filter(fingerprint=OTHER).update(merged_into=BOOM)
    fail_one(exception="shop.Other")

    with transaction.atomic():
        FailureGroup.objects.select_for_update().get(fingerprint=BOOM)
        assert stage(fold_groups).result() == 0
    assert fold_groups() == 1
    assert numbers() == {BOOM: 1, OTHER: 2}


@postgresql
def test_an_adoption_does_not_count_what_is_settled_meanwhile(queue, stage):
    queue.max_attempts = 1
    queue.save()
    fail_one()
    GroupChange.objects.all().delete()
    dying = stage(fail_one, after="insert_group_changes")

    adopt_all_groups()
    assert FailureGroup.objects.get().deaths == 1
    dying.go().result()
    assert PoisonRecord.objects.count() == 2
    adopt_all_groups()
    fold_all_groups()
    adopt_all_groups()
    assert FailureGroup.objects.get().deaths == 2


@postgresql
def test_an_adoption_beside_a_fold_is_put_off(queue, stage):
    queue.max_attempts = 1
    queue.save()
    fail_one()
    GroupChange.objects.all().delete()
    fail_one(exception="shop.Other")
    folding = stage(fold_groups, after="update_groups")

    assert adopt_groups("0") == "0"
    folding.go().result()
    adopt_all_groups()
    assert dict(FailureGroup.objects.values_list("fingerprint", "deaths")) == {BOOM: 1, OTHER: 1}


@postgresql
def test_an_adoption_begins_again_with_a_group_that_a_person_is_changing(queue, stage):
    queue.max_attempts = 1
    queue.save()
    names = sorted(["shop.Boom", "shop.Other"], key=lambda name: fingerprint("m", name))
    for name in names:
        fail_one(exception=name)
    first, second = (fingerprint("m", name) for name in names)
    GroupChange.objects.all().delete()
    fail_one(exception=names[1], permanent=False)
    GroupChange.objects.update(deaths=0)
    fold_groups()

    with transaction.atomic():
        FailureGroup.objects.select_for_update().get()
        assert stage(lambda: adopt_groups("")).result() == first
        assert stage(lambda: adopt_groups(first)).result() == first
    adopt_all_groups()
    assert dict(FailureGroup.objects.values_list("fingerprint", "deaths")) == {first: 1, second: 2}


@pytest.mark.parametrize("point", ["groups.folding", "transaction.committing"])
def test_a_fold_that_is_killed_loses_nothing_and_counts_nothing_twice(queue, point):
    fail_one()
    fold_groups()
    fail_one()
    fail_one(exception="shop.Other")

    class Killed(BaseException):
        pass

    def kill(reached: str, _subject: object) -> None:
        if reached == point:
            raise Killed

    crash_points.listen(kill)
    try:
        with pytest.raises(Killed):
            fold_groups()
    finally:
        crash_points.listen(None)
    assert GroupChange.objects.count() == 2
    assert numbers() == {BOOM: 1}

    assert fold_groups() == 2
    assert numbers() == {BOOM: 2, OTHER: 1}
    assert {row.fingerprint: row.failures for row in GroupHour.objects.all()} == numbers()
    assert {row.fingerprint: row.failures for row in GroupTag.objects.all()} == numbers()


def test_many_settles_and_folds_at_once_count_each_failure_once(queue):
    rounds, settlers, folders = 15, 3, 2
    errors: list[BaseException] = []
    is_over = False

    def guarded(work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)
        finally:
            connections.close_all()

    def settle(name: str) -> None:
        for n in range(rounds):
            message = send(name, queue="q").pk
            batch = claim(["q"], worker=name)
            failures = [Failure(id, exception=f"shop.E{n % 2}", delay="30d") for id in batch.ids]
            fail(batch.token, failures)
            assert message

    def fold() -> None:
        while not is_over:
            fold_groups()

    workers = [Thread(target=guarded, args=[lambda n=n: settle(f"m{n}")]) for n in range(settlers)]
    others = [Thread(target=guarded, args=[fold]) for _ in range(folders)]
    for thread in (*workers, *others):
        thread.start()
    for thread in workers:
        thread.join()
    is_over = True
    for thread in others:
        thread.join()
    fold_all_groups()

    assert errors == []
    while (batch := claim(["q"])).ids:  # what a claim of two left
        fail(batch.token, [Failure(id, exception="shop.E0", delay="30d") for id in batch.ids])
    fold_all_groups()
    assert sum(numbers().values()) == rounds * settlers
    assert sum(row.failures for row in GroupHour.objects.all()) == rounds * settlers
