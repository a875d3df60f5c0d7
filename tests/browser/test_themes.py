"""The pages under other looks of the admin: none breaks, and what one reads and clicks is whole."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

THEMES = ("admin_interface", "grappelli", "jazzmin", "unfold", "unfold_classes")

PAGES = {
    "dashboard": "",
    "groups": "poisonrecord/",
    "records": "poisonrecord/records/?name=orders.ship",
    "record": "poisonrecord/{poison}/change/",
    "streams": "message/streams/",
    "act": "message/act/remove/?ids={message}",
    "queue": "queue/{queue}/change/",
    "breakers": "breaker/",
    "hold": "breaker/hold/",
    "schedules": "schedule/",
    "calendar": "schedule/calendar/",
    "schedule": "schedule/{schedule}/change/",
    "schedule form": "schedule/{schedule}/edit/",
}


@dataclass(frozen=True)
class Site:
    """A site under a theme, in a process of its own."""

    theme: str
    url: str
    session: str
    asked: int
    failed: list[str]
    rows: dict[str, Any]


@pytest.fixture(scope="module", params=THEMES)
def themed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    theme: str = request.param
    if importlib.util.find_spec(theme.partition("_classes")[0]) is None:
        pytest.skip(f"{theme} is not installed: pip install -r requirements-dev.txt")
    directory: Path = tmp_path_factory.mktemp(theme)
    said, log = directory / "said", directory / "log"
    with said.open("w") as output, log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.theme_site"],
            cwd=settings.BASE_DIR,
            env={
                **os.environ,
                "THEME": theme,
                "DATABASE_URL": f"sqlite:///{directory / 'site.sqlite3'}",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )

    def ready() -> str:
        assert process.poll() is None, f"{theme} ended:\n{log.read_text()[-4_000:]}"
        text = said.read_text()
        return text if text.endswith("\n") else ""

    try:
        found = json.loads(wait_until(ready, why=lambda: log.read_text()[-4_000:]))
        port = found.pop("port")
        yield Site(theme=theme, url=f"http://127.0.0.1:{port}", **found)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


@pytest.fixture(params=["light", "dark"])
def page(request: Any, browser: Browser, themed: Site) -> Iterator[Page]:
    size: Any = {"width": 1280, "height": 900}
    context = browser.new_context(
        base_url=themed.url, locale="en", color_scheme=request.param, viewport=size
    )
    context.set_default_timeout(PATIENCE * 1_000)
    context.add_cookies([{"name": "sessionid", "value": themed.session, "url": themed.url}])
    yield context.new_page()
    context.close()


def test_no_page_is_an_error_of_the_server(themed: Site) -> None:
    assert themed.failed == []
    assert themed.asked > 55


def test_what_one_reads_and_clicks_is_whole(themed: Site, page: Page) -> None:
    problems: dict[str, list[str]] = {}

    for name, place in PAGES.items():
        answer = page.goto("/admin/deadletter/" + place.format(**themed.rows))
        assert answer is not None
        assert (name, answer.status) == (name, 200)
        if found := page.evaluate(PROBLEMS):
            problems[name] = found

    assert problems == {}


#: What a person would see at once: clipped or bare buttons, columns that touch, fields without an
#: edge, text that is for screen readers only, a page that is wider than the window.
PROBLEMS = r"""() => {
  const found = [];
  const shown = element => element.checkVisibility() && element.getClientRects().length > 0;
  const all = selector => [...document.querySelectorAll(selector)].filter(shown);
  const text = element => (element.value || element.textContent).trim().slice(0, 40);
  const colour = value => (value.match(/[\d.]+/g) || []).map(Number);
  const clear = value => { const c = colour(value); return c.length === 4 && c[3] === 0; };
  const edged = style => parseFloat(style.borderBottomWidth) > 0 && !clear(style.borderBottomColor);
  const filled = style => !clear(style.backgroundColor) || style.backgroundImage !== "none";

  const buttons = "#content-main a.button, #content-main button, #content-main .dl-button, "
    + "#content-main input[type=submit]";
  for (const button of all(buttons)) {
    const style = getComputedStyle(button);
    const [wide, high] = [button.clientWidth + 1, button.clientHeight + 2];
    if (button.scrollWidth > wide || button.scrollHeight > high)
      found.push(`clipped: ${text(button)}`);
    if (!edged(style) && !filled(style)) found.push(`no button: ${text(button)}`);
    if (style.color === style.backgroundColor) found.push(`unreadable: ${text(button)}`);
  }

  const bounds = element => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return range.getBoundingClientRect();
  };
  const rows = ".dl-box tr, .dl-scroll tr, .dl-table tr, .dl-list li";
  for (const row of all(rows)) {
    const cells = [...row.children].filter(cell => shown(cell) && text(cell));
    for (let n = 1; n < cells.length; n++) {
      const before = bounds(cells[n - 1]), after = bounds(cells[n]);
      if (!before.width || !after.width) continue;
      if (after.left - before.right < 6 && after.top < before.bottom && before.top < after.bottom)
        found.push(`touch: ${text(cells[n - 1])} | ${text(cells[n])}`);
    }
  }

  const fields = "input[type=text], input[type=search], input[type=number], select, textarea";
  for (const field of all(`#content-main :is(${fields}), #content :is(${fields})`)) {
    const style = getComputedStyle(field);
    if (!edged(style) && !style.boxShadow.includes("px")) found.push(`no edge: ${field.name}`);
  }

  for (const hidden of document.querySelectorAll("#content-main .visually-hidden")) {
    const size = hidden.getBoundingClientRect();
    if (size.width > 1 || size.height > 1) found.push(`not hidden: ${text(hidden)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) found.push("wider than the window");
  return found;
}"""
