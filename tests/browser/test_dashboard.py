"""The dashboard follows what workers do, without being loaded again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from deadletter import Outgoing, send_many
from deadletter.models import Breaker

from .rows import die

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from playwright.sync_api import Page
else:
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is missing").expect

HOME = "/admin/deadletter/"
PENDING = '[data-key="default pending"]'


def stay(page: Page) -> None:
    """Leave a mark that a full load would wipe out."""
    page.evaluate("window.stayed = true")


def stayed(page: Page) -> bool:
    return bool(page.evaluate("window.stayed === true"))


def test_the_numbers_follow_a_running_worker(open_page, workers) -> None:
    send_many([Outgoing("sample.work", {"n": n}) for n in range(40)])
    page: Page = open_page(superuser=True)
    page.goto(HOME)
    stay(page)
    expect(page.locator(PENDING)).to_have_text("40")
    expect(page.locator("#dl-verdict")).to_contain_text("No worker is running")

    workers.start().wait_ready()

    expect(page.locator(PENDING)).to_have_text("0")
    expect(page.locator('[data-key="throughput completed"]')).to_have_text("40")
    expect(page.locator("#dl-verdict")).to_contain_text("All is well")
    # Who does not see it is told.
    expect(page.get_by_role("status")).to_contain_text("All is well")
    assert stayed(page)


def test_an_update_keeps_the_focus_and_the_open_tables(open_page) -> None:
    die("sample.work", {})
    page: Page = open_page(superuser=True)
    page.goto(HOME)
    stay(page)
    page.locator("#dl-poison-table summary").click()
    page.locator('[data-key="default dead"] a').focus()

    die("sample.work", {})

    expect(page.locator('[data-key="default dead"]')).to_have_text("2")
    expect(page.locator('[data-key="default dead"] a')).to_be_focused()
    expect(page.locator("#dl-poison-table table")).to_be_visible()
    expect(page.locator("#dl-throughput-table table")).not_to_be_visible()
    assert stayed(page)


def test_updates_can_be_paused_and_resumed(open_page) -> None:
    page: Page = open_page(superuser=True)
    asked = []
    page.goto(HOME)
    page.get_by_role("button", name="Pause updates").click()
    page.on("request", lambda request: asked.append(request.url))
    send_many([Outgoing("sample.work")])
    page.wait_for_timeout(6_000)  # nothing must happen in more than one interval
    assert asked == []
    expect(page.locator(PENDING)).to_have_count(0)

    page.get_by_role("button", name="Resume updates").click()

    expect(page.locator(PENDING)).to_have_text("1")


def test_an_update_that_fails_is_told_and_repeated(open_page) -> None:
    page: Page = open_page(superuser=True)
    page.goto(HOME)
    page.route("**/admin/deadletter/", lambda route: route.fulfill(status=200, body="oops"))

    trouble = page.get_by_role("alert")
    expect(trouble).to_contain_text("The last update failed. What you see is from")

    send_many([Outgoing("sample.work")])
    page.unroute("**/admin/deadletter/")
    expect(page.locator(PENDING)).to_have_text("1")
    expect(trouble).to_be_hidden()


def test_who_was_logged_out_is_told(open_page) -> None:
    page: Page = open_page(superuser=True)
    page.goto(HOME)
    page.context.clear_cookies()

    expect(page.get_by_role("alert")).to_contain_text("You are logged out.")


def test_it_works_without_script(open_page, browser, site) -> None:
    die("sample.work", {})
    page: Page = open_page(superuser=True)
    without = browser.new_context(
        base_url=site, java_script_enabled=False, storage_state=page.context.storage_state()
    )
    plain = without.new_page()
    plain.goto(HOME)

    expect(plain.locator("#dl-verdict")).to_contain_text(
        "1 dead letter of the last hour is still there"
    )
    expect(plain.get_by_role("button", name="Pause updates")).to_have_count(0)
    plain.get_by_role("link", name="Last week").click()
    expect(plain.locator(".dl-tabs [aria-current]")).to_have_text("Last week")
    without.close()


@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
        {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}},
    ],
    ids=["desk", "phone"],
)
def test_it_fits_whatever_things_are_called(open_page, site, options) -> None:
    long = "a-name-without-any-place-to-break-it-" * 5
    now = timezone.now()
    die(long, {}, error=f"{long}: {long}")
    Breaker.objects.create(
        name=long,
        failures=3,
        error=long,
        opened_at=now,
        until=now + timedelta(minutes=1),
        opened_by=long,
    )
    page: Page = open_page(superuser=True, **options)
    for window in ("hour", "day", "week"):
        page.goto(f"{HOME}?window={window}")
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
