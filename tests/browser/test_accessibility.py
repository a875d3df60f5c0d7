"""Every page by axe-core, light and dark: nothing of ours shuts anybody out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deadletter import operations
from deadletter.models import Act
from deadletter.operations import PoisonFilter

from .test_pages import PAGES, rows  # noqa: F401 - a fixture

pytestmark = pytest.mark.process

axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is missing")

MORE = {
    "records of a filter": "poisonrecord/records/?name=sample.work",
    "remove": "poisonrecord/{poison}/remove/",
    "many": "poisonrecord/bulk/retry/?name=sample.work",
    "job": "poisonrecord/jobs/{job}/",
    "new queue": "queue/add/",
    "queue to delete": "queue/{queue}/delete/",
    "alerts": "alert/",
}

#: What Django's own markup does on its own pages too: rule, where, and why it stays.
EXCEPTIONS = {
    ("link-in-text-block", ".breadcrumbs"): "Django 5.2 and 6.0 tell crumbs by colour alone",
    ("target-size", "#changelist-filter"): "Django's filters are lines of 20 pixels",
}


@pytest.fixture
def pages(rows: dict[str, Any]) -> dict[str, str]:  # noqa: F811
    wanted = PoisonFilter(name="sample.work").fixed("default")
    job = operations.start_job(Act.RETRY, wanted, total=2, by="somebody")
    keys = {**rows, "job": job.pk}
    return {name: place.format(**keys) for name, place in {**PAGES, **MORE}.items()}


#: What axe looks for: everything once, and again what depends on colours.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {
    "light": {"type": "tag", "values": TAGS},
    "dark": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation_of_ours(open_page, pages: dict[str, str], scheme: str) -> None:
    page = open_page(superuser=True, color_scheme=scheme, viewport={"width": 1280, "height": 900})
    source = (Path(axe.__path__[0]) / "axe.min.js").read_text()
    exceptions = [[rule, where] for rule, where in EXCEPTIONS]
    problems: dict[str, list[str]] = {}

    for name, place in pages.items():
        answer = page.goto("/admin/deadletter/" + place)
        assert (name, answer.status) == (name, 200)
        page.evaluate(source)
        if found := page.evaluate(VIOLATIONS, [exceptions, RULES[scheme]]):
            problems[name] = found

    assert problems == {}


#: Everything is open that can be opened. Without its preload: that fetches style sheets again.
VIOLATIONS = """async ([exceptions, runOnly]) => {
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  const {violations} = await axe.run(document, {runOnly, preload: false});
  return violations.flatMap(({id, nodes}) => nodes.filter(node => {
    const element = document.querySelector(node.target.at(-1));
    return !exceptions.some(([rule, where]) => rule === id && element.closest(where));
  }).map(node => `${id}: ${node.target.at(-1)} ${node.html.slice(0, 120)}`));
}"""
