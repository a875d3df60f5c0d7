"""The German translation is complete, and what is shipped is what was translated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import translation
from django.utils.translation.template import templatize

from deadletter.alerts.notice import alert_title
from deadletter.models import State

APP = Path(settings.BASE_DIR) / "deadletter"
FILES = APP / "locale" / "de" / "LC_MESSAGES"
CALLS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
#: Calls that have the context before the text.
IN_CONTEXT = {"pgettext", "pgettext_lazy"}
#: A text, and its context or None.
String = tuple[str, str | None]


@pytest.fixture(scope="module")
def po() -> polib.POFile:
    return polib.pofile(str(FILES / "django.po"))


def test_every_string_is_translated_and_none_is_a_guess(po: polib.POFile) -> None:
    assert [entry.msgid for entry in po if not entry.translated()] == []
    assert [entry.msgid for entry in po if entry.fuzzy or entry.obsolete] == []
    assert [entry.msgid for entry in po if entry.previous_msgid_plural] == []


@pytest.mark.slow
def test_every_string_of_the_source_is_in_the_translation(po: polib.POFile) -> None:
    """Needs no gettext: `django-admin makemessages -l de --no-location` adds what is missing."""
    known = {(entry.msgid, entry.msgctxt) for entry in po}

    assert (set(strings_of_python()) | set(strings_of_templates())) - known == set()


def test_every_translation_has_the_placeholders_of_its_original(po: polib.POFile) -> None:
    for entry in po:
        wanted = placeholders(entry.msgid) | placeholders(entry.msgid_plural)
        for text in [entry.msgstr] if entry.msgstr else entry.msgstr_plural.values():
            assert placeholders(text) == wanted, entry.msgid


def test_the_compiled_file_holds_the_same(po: polib.POFile) -> None:
    compiled = polib.mofile(str(FILES / "django.mo"))

    def content(file: polib.POFile | polib.MOFile) -> dict[String, object]:
        return {(entry.msgid, entry.msgctxt): entry.msgstr or entry.msgstr_plural for entry in file}

    assert content(compiled) == content(po)


def test_the_pages_are_german_for_whoever_asks_for_it(admin_client: Client, db) -> None:
    # The language of a request stays with its thread: the next test must not inherit it.
    with translation.override(None):
        html = admin_client.get(
            reverse("admin:deadletter_streams"), headers={"accept-language": "de"}
        ).content.decode()

    assert "Kein Strom ist blockiert oder angehalten." in html
    assert "No stream" not in html


def test_a_word_that_django_has_too_is_translated_as_ours() -> None:
    with translation.override("de"):
        assert State.ACTIVE.label == "in Arbeit"


def test_an_alert_has_the_numbers_and_units_of_the_language() -> None:
    """In German, 1,234 would be a little more than one."""
    names = {"rule": "poison_rate", "queue": "mail", "name": None, "exception": None}
    alert = {**names, "count": 1234, "more": False, "above": 1000, "within": 7200, "detail": {}}

    with translation.override("de"):
        title = alert_title(alert)

    assert (
        title == "Warteschlange mail: 1.234 tote Nachrichten aus den letzten 2 Std., mehr als 1.000"
    )


def strings_of_python() -> Iterator[String]:
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            given = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if node.func.id in CALLS and given:
                yield str(given[0]), None
            elif node.func.id in IN_CONTEXT and len(given) > 1:
                yield str(given[1]), str(given[0])


def strings_of_templates() -> Iterator[String]:
    for path in (*APP.rglob("templates/**/*.html"), *APP.rglob("templates/**/*.txt")):
        for found in re.finditer(r"gettext\(u('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", code(path)):
            yield ast.literal_eval(found[1]), None


def code(template: Path) -> str:
    """Return what Django gives to gettext for a template."""
    return templatize(template.read_text())


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)[sd]", text))
