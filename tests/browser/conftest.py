"""
A real browser: Debian's chromium, driven by Playwright, under a strict Content-Security-Policy.

Where one of the two is missing, these tests are skipped with a line that says which.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from tests.processes import Workers, database_url, worker_processes
from tests.sample.journal import DIRECTORY

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright
except ImportError:  # pragma: no cover - depends on the machine
    sync_playwright = None  # type: ignore[assignment]

#: Milliseconds after which waiting for an element is a failure.
PATIENCE = 120_000


def missing() -> str:
    if sync_playwright is None:
        return "the browser tests need playwright: pip install -r requirements-dev.txt"
    if CHROMIUM is None:
        return "the browser tests need chromium: apt-get install chromium"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        # One browser against one database shows that the pages work; the views run on both.
        item.add_marker(
            pytest.mark.postgresql_only(reason="a worker and the server write at the same time")
        )
        if why := missing():
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # Playwright runs an event loop in this thread, and Django would refuse to query there.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox; the pages are our own.
        expect.set_options(timeout=PATIENCE)
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def site(transactional_db: None, live_server: Any, settings: Any) -> str:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.browser.csp.strict"]
    return str(live_server.url)


@pytest.fixture
def open_page(browser: Browser, site: str) -> Iterator[Callable[..., Page]]:
    """Log in as a new operator with these permissions; complaints of the browser are failures."""
    contexts, complaints = [], []

    def log_in(*permissions: str, superuser: bool = False, **options: Any) -> Page:
        name = f"operator-{len(contexts)}"
        user = User.objects.create_user(
            name, password="secret", is_staff=True, is_superuser=superuser
        )
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        context = browser.new_context(base_url=site, locale="en", **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: _note(message, complaints))
        page.goto("/admin/login/?next=/admin/")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(re.compile(r"/admin/$"))
        return page

    yield log_in
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def workers(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started


def _note(message: Any, complaints: list[str]) -> None:
    # A page that is refused is reported as an error of the network; the tests expect those.
    expected = "403" in message.text or message.location["url"].endswith("/favicon.ico")
    if message.type in ("error", "warning") and not expected:
        complaints.append(f"{message.text} ({message.location['url']})")
