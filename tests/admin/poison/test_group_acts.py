"""Acts on failure groups: what each does, who may do it, and what a hand-made request can do."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from deadletter import operations
from deadletter.admin.poison.group_acts import GROUP_ACTS
from deadletter.models import Act, ApplicationRelease, AuditEntry, FailureGroup, GroupEvent

from ..conftest import url

VIEW, GROUPS = "view_poisonrecord", "view_failuregroup"
RIGHTS = (VIEW, GROUPS, "triage_group", "note_group", "merge_group")
#: What each act needs besides the permissions to see the page, and an answer that it accepts.
ACTS: dict[str, tuple[str, dict[str, str]]] = {
    "acknowledge": ("triage_group", {}),
    "mute": ("triage_group", {"duration": "4h"}),
    "resolve": ("triage_group", {"in_release": "2.7.1"}),
    "reopen": ("triage_group", {}),
    "assign": ("triage_group", {"owner": "operator"}),
    "ticket": ("triage_group", {"url": "https://tickets.example.com/7"}),
    "note": ("note_group", {"text": "Ask the carrier."}),
    "merge": ("merge_group", {"more": "OTHER"}),
    "split": ("merge_group", {}),
}


@pytest.fixture
def groups(poisoned) -> list[FailureGroup]:
    """Three groups: a plain one, one with another merged into it, and that one."""
    records = [poisoned(name) for name in ("ship", "mail", "pay")]
    one, main, merged = (record.fingerprint for record in records)
    operations.merge_groups(main, [merged], by="ada")
    AuditEntry.objects.all().delete()
    GroupEvent.objects.all().delete()
    found = {row.fingerprint: row for row in FailureGroup.objects.all()}
    return [found[one], found[main], found[merged]]


def send_act(browser: Client, groups: list[FailureGroup], act: str, **more: Any) -> Any:
    """Make the request of an act that works on these groups."""
    one, main, merged = groups
    values = dict(ACTS[act][1])
    subject = one
    if act == "reopen":
        FailureGroup.objects.filter(pk=one.pk).update(state="acknowledged")
    if act == "split":
        subject = merged
    if act == "merge":
        values |= {"main": one.fingerprint, "more": main.fingerprint}
    data = {"group": subject.fingerprint, "why": "because", **values, **more}
    return browser.post(url("poisonrecord", f"group_{act}"), data)


def state() -> Any:
    return (
        list(FailureGroup.objects.order_by("pk").values()),
        list(GroupEvent.objects.order_by("pk").values()),
        AuditEntry.objects.count(),
    )


def test_every_act_of_the_admin_is_tested_here() -> None:
    assert set(ACTS) == set(GROUP_ACTS)


@pytest.mark.parametrize(
    "granted",
    [set(some) for n in range(6) for some in itertools.combinations(RIGHTS, n)],
    ids=lambda some: "+".join(sorted(some)) or "none",
)
def test_every_act_asks_for_its_permissions_and_no_others(login, groups, granted) -> None:
    browser = login(*granted)
    one, _main, merged = groups

    for act, (needed, _) in ACTS.items():
        is_allowed = {VIEW, GROUPS, needed} <= granted
        fingerprint = (merged if act == "split" else one).fingerprint
        page = f"{url('poisonrecord', f'group_{act}')}?group={fingerprint}"
        assert browser.get(page).status_code == (200 if is_allowed else 403), act
        FailureGroup.objects.filter(pk=one.pk).update(state="acknowledged")
        before = state()
        if not is_allowed:
            assert send_act(browser, groups, act).status_code == 403, act
            assert state() == before, act


@pytest.mark.parametrize("act", ACTS)
def test_the_permissions_of_an_act_are_enough_for_it(login, groups, act: str) -> None:
    response = send_act(login(VIEW, GROUPS, ACTS[act][0]), groups, act)

    assert response.status_code == 302
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.done) == ("operator", 1)
    assert entry.why == ("" if act == "note" else "because")
    assert LogEntry.objects.filter(user__username="operator").exists()
    assert GroupEvent.objects.filter(by="operator").exists()


@pytest.mark.parametrize("act", ACTS)
def test_nobody_gets_anywhere_without_being_staff(groups, act: str) -> None:
    visitor = Client()
    user = User.objects.create_user("visitor")
    user.user_permissions.set(Permission.objects.all())
    visitor.force_login(user)
    FailureGroup.objects.filter(pk=groups[0].pk).update(state="acknowledged")
    before = state()

    for browser in (visitor, Client()):
        answer = send_act(browser, groups, act)
        assert (answer.status_code, "/login/" in answer.url) == (302, True)
    assert state() == before


@pytest.mark.parametrize("act", ACTS)
def test_a_request_without_the_token_of_the_form_is_refused(admin_user, groups, act) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)
    FailureGroup.objects.filter(pk=groups[0].pk).update(state="acknowledged")
    before = state()

    assert send_act(browser, groups, act).status_code == 403
    assert state() == before


@pytest.mark.parametrize("act", ACTS)
def test_get_changes_nothing(admin_client: Client, groups, act: str) -> None:
    values = {**ACTS[act][1], "why": "x", "confirmed": "1"}
    before = state()
    page = url("poisonrecord", f"group_{act}")
    for group in groups:
        admin_client.get(page, {"group": group.fingerprint, **values})
        assert admin_client.get(page, {"group": group.fingerprint}).status_code in (200, 302)
    assert state() == before


@pytest.mark.parametrize("act", ACTS)
def test_unknown_parameters_and_no_groups_are_refused(admin_client, groups, act) -> None:
    page = url("poisonrecord", f"group_{act}")
    group = groups[0].fingerprint

    assert admin_client.get(page, {"group": group, "state": "new"}).status_code == 400
    for query in ({}, {"group": "0" * 16}, {"group": "\x00"}, {"group": "' OR 1=1"}):
        response = admin_client.get(page, query, follow=True)
        assert response.redirect_chain == [(url("poisonrecord"), 302)], query
        assert "Select at least one group." in response.content.decode()


def test_a_group_is_acknowledged(admin_client: Client, groups) -> None:
    one = groups[0]
    page = f"{url('poisonrecord', 'group_acknowledge')}?group={one.fingerprint}"
    assert admin_client.get(page).context["question"].button == "Acknowledge"

    response = send_act(admin_client, groups, "acknowledge")

    assert response.url == url("poisonrecord", "group", one.fingerprint)
    one.refresh_from_db()
    assert (one.state, one.state_by) == ("acknowledged", "admin")


def test_a_group_is_muted_for_a_time_and_a_growth(admin_client: Client, groups, clock) -> None:
    send_act(admin_client, groups, "mute", duration="2d", grows_by="50")

    groups[0].refresh_from_db()
    assert groups[0].state == "muted"
    assert groups[0].muted_until == clock.now + timedelta(days=2)
    assert groups[0].muted_until_failures == groups[0].failures + 50


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"duration": "soon"}, "This is no duration"),
        ({"duration": "400d"}, "at most a year"),
        ({"grows_by": "0"}, "greater than or equal to 1"),
        ({"why": "x" * 2_001}, "at most 2000 characters"),
    ],
)
def test_a_mute_that_makes_no_sense_is_asked_again(admin_client, groups, values, problem) -> None:
    before = state()

    response = send_act(admin_client, groups, "mute", **values)

    assert response.status_code == 200
    assert problem in response.content.decode()
    assert state() == before


def test_a_group_is_resolved_in_a_release_that_the_form_suggests(
    admin_client, groups, clock
) -> None:
    ApplicationRelease.objects.create(name="2.7.1", first_seen_at=clock.now, last_seen_at=clock.now)
    page = f"{url('poisonrecord', 'group_resolve')}?group={groups[0].fingerprint}"
    assert '<option value="2.7.1">' in admin_client.get(page).content.decode()

    send_act(admin_client, groups, "resolve")

    groups[0].refresh_from_db()
    assert (groups[0].state, groups[0].resolved_in) == ("resolved", "2.7.1")


def test_an_owner_is_an_active_user(admin_client: Client, groups) -> None:
    User.objects.create_user("gone", is_active=False)
    page = f"{url('poisonrecord', 'group_assign')}?group={groups[0].fingerprint}"
    # The person who asks is the usual answer.
    assert 'value="admin"' in admin_client.get(page).content.decode()

    for owner in ("nobody", "gone"):
        response = send_act(admin_client, groups, "assign", owner=owner)
        assert "There is no active user with this name." in response.content.decode()
    send_act(admin_client, groups, "assign", owner="admin")
    groups[0].refresh_from_db()
    assert groups[0].owner == "admin"
    send_act(admin_client, groups, "assign", owner="")
    groups[0].refresh_from_db()
    assert groups[0].owner == ""


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "//example.com", "https://u:p@example.com/", "https://a b", "ftp://x"],
)
def test_a_ticket_is_an_address_of_the_web(admin_client: Client, groups, address: str) -> None:
    before = state()

    response = send_act(admin_client, groups, "ticket", url=address)

    assert response.status_code == 200
    assert response.context["form"].errors
    assert state() == before


def test_a_note_is_written_and_answered(admin_client: Client, groups) -> None:
    one = groups[0]
    send_act(admin_client, groups, "note", text="Is it\nthe carrier?")
    note = GroupEvent.objects.get(kind="note")
    page = url("poisonrecord", "group_note")
    asked = admin_client.get(page, {"group": one.fingerprint, "answers": note.pk})

    assert asked.context["question"].title.startswith("Answer a note on ")
    assert asked.context["form"].initial["answers"] == note.pk
    send_act(admin_client, groups, "note", text="Yes.", answers=str(note.pk))

    answer = GroupEvent.objects.latest("pk")
    assert (note.text, answer.text, answer.answers_id) == ("Is it\nthe carrier?", "Yes.", note.pk)


@pytest.mark.parametrize("values", [{"text": " "}, {"text": "x" * 10_001}, {"answers": "999999"}])
def test_a_note_that_cannot_be_kept_is_asked_again(admin_client, groups, values) -> None:
    before = state()

    response = send_act(admin_client, groups, "note", **values)

    assert response.status_code == 200
    assert response.context["form"].errors
    assert state() == before


def test_groups_are_merged_and_split_off_again(admin_client: Client, groups, poisoned) -> None:
    one, main, merged = groups

    response = send_act(admin_client, groups, "merge")

    assert response.url == url("poisonrecord", "group", one.fingerprint)
    shown = {row.fingerprint: row.merged_into for row in FailureGroup.objects.all()}
    assert shown == {
        one.fingerprint: "",
        main.fingerprint: one.fingerprint,
        merged.fingerprint: one.fingerprint,
    }
    send_act(admin_client, groups, "split")
    merged.refresh_from_db()
    assert (merged.merged_into, merged.state) == ("", "new")


def test_a_selection_is_merged_into_the_group_that_is_chosen(admin_client, groups) -> None:
    one, main, _ = (group.fingerprint for group in groups)
    page = f"{url('poisonrecord', 'group_merge')}?group={one}&group={main}"
    assert [key for key, _ in admin_client.get(page).context["form"].fields["main"].choices] == [
        one,
        main,
    ]

    admin_client.post(
        url("poisonrecord", "group_merge"), {"group": [one, main], "main": main, "why": "same"}
    )

    assert FailureGroup.objects.get(fingerprint=one).merged_into == main
    assert AuditEntry.objects.get().act == Act.MERGE_GROUP


@pytest.mark.parametrize("more", ["", "SELF", "0123456789abcdef"])
def test_a_merge_with_nothing_changes_nothing(admin_client: Client, groups, more: str) -> None:
    before = state()[0]

    one = groups[0].fingerprint
    send_act(admin_client, groups, "merge", more=one if more == "SELF" else more)

    assert state()[0] == before


def test_many_groups_are_acknowledged_at_once(admin_client: Client, groups) -> None:
    one, main, _ = (group.fingerprint for group in groups)

    response = admin_client.post(
        url("poisonrecord", "group_acknowledge"), {"group": [one, main]}, follow=True
    )

    assert response.redirect_chain == [(url("poisonrecord"), 302)]
    assert "2 groups: acknowledged." in response.content.decode()
    assert FailureGroup.objects.main().filter(state="acknowledged").count() == 2
    assert AuditEntry.objects.get().done == 2


def test_who_was_slower_is_told_so(admin_client: Client, groups) -> None:
    operations.acknowledge_group(groups[0].fingerprint, by="ada")

    response = send_act(admin_client, groups, "acknowledge")

    html = admin_client.get(response.url).content.decode()
    assert "Refused: group" in html
    assert "is acknowledged already" in html
    groups[0].refresh_from_db()
    assert groups[0].state_by == "ada"


def test_the_way_back_stays_on_this_site(admin_client: Client, groups) -> None:
    one = groups[0].fingerprint
    back = url("poisonrecord") + "?state=open"

    assert send_act(admin_client, groups, "acknowledge", next=back).url == back
    away = send_act(admin_client, groups, "reopen", next="https://evil.example/")
    assert away.url == url("poisonrecord", "group", one)


@pytest.mark.parametrize("state_name", ["new", "regressed", "acknowledged", "muted", "resolved"])
def test_the_page_offers_the_acts_that_the_state_allows(
    admin_client, groups, state_name: str
) -> None:
    FailureGroup.objects.update(state=state_name)
    page = url("poisonrecord", "group", groups[0].fingerprint)

    urls = [act["url"].partition("?")[0] for act in admin_client.get(page).context["acts"]]

    for act in ("acknowledge", "mute", "resolve", "reopen"):
        offered = url("poisonrecord", f"group_{act}") in urls
        before = AuditEntry.objects.filter(done=1).count()
        FailureGroup.objects.update(state=state_name)
        if act == "reopen":
            browser = admin_client
            data = {"group": groups[0].fingerprint}
            browser.post(url("poisonrecord", "group_reopen"), data)
        else:
            send_act(admin_client, groups, act, in_release="")
        assert (AuditEntry.objects.filter(done=1).count() > before) >= offered, act
