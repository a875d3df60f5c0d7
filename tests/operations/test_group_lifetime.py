"""Groups from failures to their repair and back: what people do meets what workers count."""

from __future__ import annotations

from datetime import timedelta

from deadletter import operations, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup, GroupEvent, PoisonRecord
from deadletter.operations import GroupFilter, PoisonFilter

from .groups import release


def fails(clock, *, release: str = "", customer: int = 1, **options) -> int:
    """Send a message, let it die, and add it to its group a second later."""
    message = send("orders.ship", {"customer": {"id": customer}})
    batch = claim(["default"])
    given = {"permanent": True, "error": "full", "release": release}
    tags = (("customer.id", str(customer)),)
    fail(batch.token, [Failure(message.id, tags=tags, **given | options)])
    clock.advance(1)
    fold_all_groups()
    return message.id


def test_a_resolved_group_comes_back_with_its_history(clock):
    first = fails(clock, release="2.7.0", customer=1041)
    (row,) = operations.list_failure_groups()
    operations.write_note(row.fingerprint, "the API changed", by="ann")
    operations.retry_poison(PoisonRecord.objects.get().pk, by="ann")
    operations.remove([first])
    operations.resolve_group(row.fingerprint, by="ann")
    assert operations.list_failure_groups(GroupFilter(state="open")) == []
    clock.advance(60)

    fails(clock, release="2.7.1", customer=7)

    (found,) = operations.list_failure_groups(GroupFilter(state="open"))
    assert (found.fingerprint, found.state, found.failures, found.records) == (
        row.fingerprint, "regressed", 2, 1,
    )  # fmt: skip
    assert (found.first_release, found.last_release) == ("2.7.0", "2.7.1")
    kinds = [entry.kind for entry in operations.timeline(row.fingerprint)]
    assert kinds.count("regressed") == kinds.count("note") == kinds.count("retry") == 1
    assert operations.acknowledge_group(row.fingerprint, by="bob").done == [row.fingerprint]
    (key,) = operations.get_failure_group(row.fingerprint).tags
    assert {one.value: one.failures for one in key.values} == {"1041": 1, "7": 1}
    records = PoisonFilter(tag="customer.id=7").records("default")
    assert list(records) == [PoisonRecord.objects.get()]
    assert operations.tag_page("customer.id", "1041").records == 0


def test_failures_of_older_releases_do_not_bring_a_group_back(clock):
    release("2.6.0", clock, age=7_200)
    release("2.7.0", clock, age=3_600)
    fails(clock, release="2.6.0")
    fingerprint = FailureGroup.objects.get().fingerprint
    operations.resolve_group(fingerprint, in_release="2.7.0")
    clock.advance(1)

    fails(clock, release="2.6.0")
    assert FailureGroup.objects.get().state == "resolved"

    fails(clock, release="2.7.0")
    assert FailureGroup.objects.get().state == "regressed"


def test_a_mute_ends_after_the_growth_that_was_given_with_merged_groups_counted(clock):
    fails(clock)
    fails(clock, exception="shop.Other")
    main, part = FailureGroup.objects.order_by("fingerprint")
    operations.merge_groups(main.fingerprint, part.fingerprint)
    operations.acknowledge_group(main.fingerprint)
    operations.mute_group(main.fingerprint, grows_by=2)

    fails(clock)
    assert FailureGroup.objects.get(pk=main.pk).state == "muted"
    fails(clock, exception="shop.Other")

    row = FailureGroup.objects.get(pk=main.pk)
    assert (row.state, row.muted_until_failures) == ("acknowledged", None)
    assert GroupEvent.objects.filter(kind="unmuted").count() == 1
    (shown,) = operations.list_failure_groups()
    assert (shown.failures, shown.records, shown.aliases) == (4, 4, (part.fingerprint,))


def test_a_failure_of_a_merged_group_brings_its_main_group_back(clock):
    fails(clock)
    fails(clock, exception="shop.Other")
    main, part = FailureGroup.objects.order_by("fingerprint")
    operations.merge_groups(main.fingerprint, part.fingerprint)
    operations.resolve_group(main.fingerprint)
    clock.advance(timedelta(minutes=1))

    fails(clock)
    fails(clock, exception="shop.Other")

    states = dict(FailureGroup.objects.values_list("fingerprint", "state"))
    assert states[main.fingerprint] == "regressed"
