"""Breadcrumbs have the markup that this Django's own pages have, whichever version it is."""

from __future__ import annotations

import re

import django
import pytest
from django.template import Context, Template
from django.test import Client

from deadletter import clock as clocks
from deadletter.templatetags import deadletter_breadcrumbs

from .every_page import every_page, hostile_rows

TRAIL = re.compile(r'<(?P<tag>\w+) class="breadcrumbs">(?P<inside>.*?)</(?P=tag)>', re.DOTALL)
SOURCE = """{% load deadletter_breadcrumbs %}{% breadcrumbs %}
{% crumb url %}<bdi>{{ text }}</bdi>{% endcrumb %}
{% crumb %}{{ text }}{% endcrumb %}
{% endbreadcrumbs %}"""


def shape(text: str) -> tuple[str, bool, bool]:
    """Return the element, whether its crumbs are items, and whether the page itself is marked."""
    (trail,) = TRAIL.finditer(text)
    inside = trail["inside"]
    if "<li" in inside:
        assert "&rsaquo;" not in inside
        assert inside.count("<li") == inside.count("<a ") + 1
    else:
        assert inside.count("&rsaquo;") == inside.count("<a ")
    return trail["tag"], "<li" in inside, 'aria-current="page"' in inside


@pytest.mark.slow
def test_every_page_has_the_breadcrumbs_of_djangos_own(admin_client: Client, db):
    own = shape(admin_client.get("/admin/auth/user/").content.decode())
    assert own[0] == ("ol" if django.VERSION >= (6, 1) else "div")
    shapes = {}

    for page in every_page(hostile_rows(clocks.now("default"))):
        answer = admin_client.get(page)
        text = answer.content.decode() if "html" in answer["Content-Type"] else ""
        if answer.status_code == 200 and text:
            shapes[page] = shape(text)

    assert {page: found for page, found in shapes.items() if found != own} == {}
    assert len(shapes) > 35


@pytest.mark.parametrize(
    ("is_list", "expected"),
    [
        (
            True,
            (
                '<ol class="breadcrumbs"> <li><a href="?b&amp;c"><bdi>&lt;x&gt;</bdi></a></li> '
                '<li aria-current="page">&lt;x&gt;</li> </ol>'
            ),
        ),
        (
            False,
            (
                '<div class="breadcrumbs"> <a href="?b&amp;c"><bdi>&lt;x&gt;</bdi></a> &rsaquo; '
                "&lt;x&gt; </div>"
            ),
        ),
    ],
    ids=["Django 6.1", "Django 5.2 and 6.0"],
)
def test_crumbs_are_items_or_a_line_and_escape_once(monkeypatch, is_list, expected):
    monkeypatch.setattr(deadletter_breadcrumbs, "IS_LIST", is_list)

    text = Template(SOURCE).render(Context({"text": "<x>", "url": "?b&c"}))

    assert re.sub(r"\s+", " ", text) == expected
