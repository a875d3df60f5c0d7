"""A failure reason is one member: its label, its translation and its line in the README."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.utils import translation

from deadletter import FailureReason
from deadletter.admin.render import reason_name
from deadletter.models import Message, PoisonRecord

ROOT = Path(__file__).parents[2]
EVERY = pytest.mark.parametrize("reason", list(FailureReason), ids=lambda reason: reason.name)


@EVERY
def test_a_reason_has_a_label_in_english(reason: FailureReason):
    with translation.override("en"):
        assert str(reason.label) == reason.name.replace("_", " ").lower()


@EVERY
def test_a_reason_has_a_german_translation(reason: FailureReason):
    catalogue = (ROOT / "deadletter/locale/de/LC_MESSAGES/django.po").read_text()

    with translation.override("en"):
        label = re.escape(str(reason.label))

    assert re.search(rf'^msgid "{label}"\nmsgstr "[^"]+"$', catalogue, re.MULTILINE)


@EVERY
def test_the_readme_says_when_a_message_has_this_reason(reason: FailureReason):
    text = (ROOT / "README.md").read_text()
    section = text.partition("## What happens on failure")[2].partition("\n## ")[0]

    assert f"`{reason.name}`" in section


@EVERY
def test_a_reason_is_still_a_number(reason: FailureReason):
    number = reason.value

    assert FailureReason(number) is reason
    assert FailureReason[reason.name] is reason
    assert reason == number
    assert hash(reason) == hash(number)
    assert json.dumps({"reason": reason}) == f'{{"reason": {number}}}'
    assert pickle.loads(pickle.dumps(reason)) is reason
    assert f"{reason}" == str(reason) == str(number)
    assert repr(reason) == f"<FailureReason.{reason.name}: {number}>"


def test_rows_and_pages_show_the_label():
    reason = FailureReason.TIMEOUT_EXCEEDED

    assert Message(failure_reason=reason).get_failure_reason_display() == "timeout exceeded"
    assert PoisonRecord(reason=4).get_reason_display() == "timeout exceeded"
    assert reason_name(4) == "timeout exceeded"
    assert reason_name(1234) == reason_name(None) == "unknown"


#: Adds a member to the source of status.py before anything imports it.
NEW_REASON = """
import sys
from pathlib import Path
from types import ModuleType

before = '    UNKNOWN = 99'
source = Path("deadletter/status.py").read_text()
assert before in source
module = sys.modules["deadletter.status"] = ModuleType("deadletter.status")
exec(source.replace(before, '    SOLAR_FLARE = 12, _("solar flare")\\n' + before), vars(module))

import django
django.setup()
from django.core.management import call_command
from deadletter import FailureReason
from deadletter.admin.render import reason_name
from deadletter.models import PoisonRecord

assert FailureReason(12).name == "SOLAR_FLARE"
assert PoisonRecord(reason=12).get_reason_display() == "solar flare"
assert reason_name(12) == "solar flare"
call_command("makemigrations", "--check", "--dry-run")
"""


@pytest.mark.process
def test_a_new_reason_needs_no_migration():
    done = subprocess.run(
        [sys.executable, "-c", NEW_REASON],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "No changes detected" in done.stdout
