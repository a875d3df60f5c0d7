"""The keys of the pages move, open, and press what asks first; they never act by themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import AuditEntry, FailureGroup, PoisonRecord

from .rows import die

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from playwright.sync_api import Page
else:
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is missing").expect

EVERYTHING = (
    "view_message",
    "view_poisonrecord",
    "view_payload",
    "retry_poison",
    "edit_payload",
    "remove_poison",
)
RECORDS = "/admin/deadletter/poisonrecord/records/"


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def test_rows_are_walked_and_opened(open_page) -> None:
    records = [die("sample.work", {"fail": 1_000, "order": n}) for n in range(3)]
    names = [f"sample.work #{record.message_id}" for record in reversed(records)]
    page: Page = open_page(*EVERYTHING)
    page.goto(RECORDS)

    walked = []
    for key in "jjjjkk":
        page.keyboard.press(key)
        walked.append(focused(page))

    assert walked == [names[0], names[1], names[2], names[2], names[1], names[0]]
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url(re.compile(rf"/poisonrecord/{records[1].pk}/change/$"))


def test_r_selects_the_row_and_asks_before_it_retries(open_page) -> None:
    records = [die("sample.work", {"fail": 1_000, "order": n}) for n in range(2)]
    page: Page = open_page(*EVERYTHING)
    page.goto(RECORDS)

    page.keyboard.press("j")
    page.keyboard.press("r")

    page.wait_for_url(re.compile("/bulk/retry/"))
    expect(page.get_by_role("button", name="Retry 1 message")).to_be_visible()
    expect(page.locator("#content-main")).to_contain_text(str(records[1].message_id))
    assert PoisonRecord.objects.count() == 2
    assert AuditEntry.objects.count() == 0


@pytest.mark.parametrize(("key", "address"), [("r", "/retry/"), ("e", "/edit/")])
def test_a_record_is_retried_and_edited_by_pages_that_ask(open_page, key, address) -> None:
    record = die("sample.work", {"fail": 1_000})
    page: Page = open_page(*EVERYTHING)
    page.goto(f"/admin/deadletter/poisonrecord/{record.pk}/change/")

    page.keyboard.press(key)

    page.wait_for_url(re.compile(address))
    assert PoisonRecord.objects.filter(pk=record.pk).exists()


def test_a_key_without_its_right_does_nothing(open_page) -> None:
    record = die("sample.work", {"fail": 1_000})
    page: Page = open_page("view_poisonrecord")
    address = f"/admin/deadletter/poisonrecord/{record.pk}/change/"
    page.goto(address)

    for key in "rea":
        page.keyboard.press(key)
    page.keyboard.press("?")

    expect(page.locator("#dl-keys")).to_be_visible()
    assert page.url.endswith(address)


def test_the_keys_are_listed_and_can_be_turned_off_for_good(open_page) -> None:
    die("sample.work", {"fail": 1_000})
    page: Page = open_page(*EVERYTHING)
    page.goto(RECORDS)

    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keys of this page")
    expect(sheet).to_be_visible()
    sheet.get_by_role("button", name="Turn the keys off in this browser").click()
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()

    page.reload()
    page.keyboard.press("j")
    assert not focused(page).startswith("sample.work")
    page.get_by_role("button", name="Keys ?").click()
    sheet.get_by_role("button", name="Turn the keys on").click()
    sheet.get_by_role("button", name="Close").click()
    page.keyboard.press("j")
    assert focused(page).startswith("sample.work")


def test_what_is_typed_into_a_field_is_text(open_page) -> None:
    die("sample.work", {"fail": 1_000})
    page: Page = open_page(*EVERYTHING)
    page.goto(RECORDS)

    page.locator("#dl-q").press_sequentially("jokare?")

    expect(page.locator("#dl-q")).to_have_value("jokare?")
    expect(page.locator("#dl-keys")).to_be_hidden()
    assert page.url.endswith(RECORDS)


@pytest.mark.parametrize(("key", "address"), [("a", "/acknowledge/"), ("r", "/bulk/retry/")])
def test_a_group_is_acknowledged_and_retried_by_pages_that_ask(open_page, key, address) -> None:
    die("sample.work", {"fail": 1_000})
    fold_all_groups()
    group = FailureGroup.objects.get()
    page: Page = open_page(*EVERYTHING, "view_failuregroup", "triage_group")
    page.goto(f"/admin/deadletter/poisonrecord/groups/{group.fingerprint}/")

    page.keyboard.press(key)

    page.wait_for_url(re.compile(address))
    group.refresh_from_db()
    assert group.state == "new"
