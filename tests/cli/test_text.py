"""Text from outside is shown, never obeyed; columns stay where they are."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import unicodedata
from datetime import timedelta

import pytest
from django.conf import settings

from deadletter import operations
from deadletter.cli.text import ago, lasted, span, table
from deadletter.logs import event
from deadletter.models import PoisonRecord, Queue
from deadletter.text import count_columns, fit_columns, terminal_line, terminal_paragraph
from tests.operations.records import dead, failed
from tests.patience import PATIENCE

HOSTILE = "<script>{{7*7}}\x1b[2J\x1b]0;title\x07\u202e\u2066\u200b\u2028\ud800\x9b31m\r\n\t=1+1é́́́́"
#: What no printed line may contain.
DANGEROUS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def test_nothing_in_a_line_is_an_instruction():
    shown = terminal_line(HOSTILE)

    assert not DANGEROUS.search(shown)
    assert "\n" not in shown
    assert shown.startswith(
        "<script>{{7*7}}\\x1b[2J\\x1b]0;title\\x07\\u202e\\u2066\\u200b\\u2028\\ud800"
    )
    assert " ⏎ " in shown
    assert sum(bool(unicodedata.combining(c)) for c in shown) == 2


def test_a_long_text_is_cut_without_looking_at_all_of_it():
    huge = "x" * 10_000_000

    assert terminal_line(huge, width=20) == "x" * 19 + "…"
    assert terminal_paragraph(huge, limit=10, indent="  ") == [
        "  xxxxxxxxxx",
        "  [9,999,990 more characters]",
    ]
    assert terminal_line("日本語日本語", width=7) == "日本語…"
    assert count_columns(fit_columns("日本語日本語", 8)) <= 8
    assert terminal_line(None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "under 1 ms"),
        (0.000063, "under 1 ms"),
        (0.00841, "0.0084 s"),
        (9.99, "10 s"),
        (99.7, "100 s"),
        (1_234, "20 min"),
        (1e300, "365000 d"),
        (float("nan"), "365000 d"),
    ],
)
def test_how_long_an_attempt_took_has_no_exponent(seconds, text):
    assert lasted(seconds) == text


def test_columns_are_aligned_whatever_is_in_them():
    lines = table(["a", "n", "last"], [["日本", 1, "x"], ["\x1b", 1000, "y" * 99]], width=40)

    assert lines == ["a        n  last", "日本     1  x", "\\x1b  1000  " + "y" * 27 + "…"]
    assert table(["a", "b"], [], width=10) == ["a  b"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d"), (1e9, "11574 d")],
)
def test_durations_are_said_in_a_persons_unit(seconds, text):
    assert span(timedelta(seconds=seconds)) == text


def test_a_moment_is_ago_or_ahead(clock):
    assert ago(None, clock.now) == "-"
    assert ago(clock.now + timedelta(hours=3), clock.now) == "in 3 h"
    assert ago(clock.now - timedelta(days=3), clock.now) == "3 d ago"


@pytest.mark.slow
def test_hostile_content_is_harmless_wherever_it_is_printed(cli, clock):
    text = HOSTILE.replace("\ud800", "")  # what a column can hold
    record, waiting = dead(payload={text: text}, headers={"h": text}), failed(stream="s")
    hostile = {
        "name": text[:40],
        "stream": text[:40],
        "key": text,
        "last_error": text * 1_000,
        "verdict": text,
        "exception": text,
        "frame": text,
        "instance": text,
        "poisoned_by": text,
        "fingerprint": "\x1b[31m\u202e",
        "history": [
            {"at": text, "worker": text, "error": text, "traceback": text, "attempt": text}
        ],
    }
    PoisonRecord.objects.filter(pk=record.pk).update(**hostile)
    type(waiting).objects.filter(pk=waiting.pk).update(name=text[:40], stream=text[:40], error=text)
    Queue.objects.filter(name="default").update(name=text[:40])
    PoisonRecord.objects.filter(pk=record.pk).update(queue=text[:40])
    operations.retry_now([waiting.pk], by=text, why=text)

    for arguments in (
        ["list"],
        ["list", "--state", "pending"],
        ["show", record.pk, "--full", "--reveal"],
        ["show", record.pk],
        ["show", "--message", waiting.pk],
        ["stats"],
        ["queues"],
        ["retry", record.pk, "--dry-run"],
        ["retry", "--all", "--dry-run"],
        ["retry", "--queue", text],
        ["retry", "--all", "--to-queue", text, "--yes"],
        ["remove", "--message", waiting.pk, "--dry-run"],
        ["queues", "pause", text],
        ["list", "--reason", text],
        ["health"],
    ):
        for extra in ([], ["--format", "json"]):
            result = cli(*arguments, *extra)
            for line in (result.out + result.err).splitlines():
                assert not DANGEROUS.search(line), (arguments, line)


def test_a_line_of_the_log_cannot_be_turned_round(caplog):
    event(logging.WARNING, "test", "error {error}", error="a\u202eb\u2066c\u2028d\ne")

    assert caplog.messages == ["error a\\u202eb\\u2066c\\u2028d ⏎ e"]


def test_a_stream_that_cannot_encode_gets_escapes(clock):
    from deadletter.cli.output import _encodable

    class Latin:
        encoding = "latin-1"

    assert _encodable("é…", Latin()) == "é\\u2026"


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_exit_codes_reach_the_shell(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "manage.py", "deadletter", *arguments],
            cwd=settings.BASE_DIR,
            env={"DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3", "PATH": ""},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )

    unmigrated = run("list")
    wrong = run("retry")

    assert (unmigrated.returncode, wrong.returncode) == (1, 2)
    assert "the database refused: no such table" in unmigrated.stderr
    assert "Traceback" not in unmigrated.stderr + wrong.stderr
