"""Whatever was sent is shown as text, under a strict content policy, on any admin site."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin import AdminSite
from django.test import Client
from django.urls import include, path

from deadletter import operations
from deadletter.admin import PoisonRecordAdmin
from deadletter.models import Act, PoisonRecord, Queue
from deadletter.operations import PoisonFilter
from deadletter.text import page_text

from ..conftest import url

pytestmark = pytest.mark.slow

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "{{7919*7907}}{% now 'Y' %}",
    "\x1b[31mred\x1b[0m",
    "=cmd|' /C calc'!A0",
    "invoice\u202efdp.exe\u2066",
    "' onmouseover='alert(1)",
]


def pages(record: PoisonRecord, job: int) -> list[str]:
    query = f"?fingerprint={record.fingerprint}"
    return [
        url("poisonrecord"),
        url("poisonrecord", "records"),
        url("poisonrecord", "records") + query,
        url("poisonrecord", "records") + "?reason=no",
        url("poisonrecord", "matrix"),
        url("poisonrecord", "matrix") + "?by=exception",
        *(url("poisonrecord", page, record.pk) for page in ("change", "retry", "edit", "remove")),
        url("poisonrecord", "bulk", "retry") + query,
        url("poisonrecord", "bulk", "remove") + query,
        url("poisonrecord", "jobs"),
        url("poisonrecord", "job", job),
        url("poisonrecord", "job", job) + "?part=1",
    ]


@pytest.fixture
def dirty(poisoned):
    """Put one text wherever a text can be."""

    def spoil(text: str) -> tuple[PoisonRecord, int]:
        record = poisoned("mail", {"key": text, "k": [text]}, headers={"h": text})
        clean = text.replace("\x1b", "\ufffd")
        entry = {
            "at": text,
            "attempt": text,
            "worker": text,
            "error": text,
            "traceback": f'Traceback\n  File "{clean}", line 1, in {clean}\n    {clean}\n{clean}',
        }
        PoisonRecord.objects.update(
            name=text, exception=text, frame=text, stream=text, key=text, instance=text,
            verdict=text, last_error=text, poisoned_by=text, kind=text[:16],
            history=[entry, {"original_payload": text, "error": text}],
        )  # fmt: skip
        wanted = PoisonFilter(name=text).fixed("default")
        job = operations.start_job(Act.RETRY, wanted, total=1, by=text, why=text)
        record.refresh_from_db()
        return record, job.pk

    return spoil


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_content_is_shown_and_never_run(admin_client: Client, dirty, text: str) -> None:
    record, job = dirty(text)

    for page in pages(record, job):
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html, page
        assert "<img src=x" not in html, page
        assert str(7919 * 7907) not in html, page  # too large to be a time or an id
        assert "\x1b" not in html, page
        assert "\u202e" not in html.replace(f'value="{text}"', ""), page
        assert 'href="javascript' not in html, page


def test_what_deceives_the_eye_is_named(admin_client: Client, dirty) -> None:
    record, _ = dirty("invoice\u202efdp.exe")

    html = admin_client.get(url("poisonrecord", "change", record.pk)).content.decode()

    assert "invoice[U+202E]fdp.exe" in html
    assert page_text("a\u200bb\x00c") == "a[U+200B]b\ufffdc"
    assert page_text("x" * 30, limit=10) == "x" * 10 + "…"
    assert page_text(None) == ""


@pytest.mark.slow
def test_an_error_of_ten_megabytes_does_not_fill_the_page(admin_client: Client, poisoned) -> None:
    record = poisoned()
    PoisonRecord.objects.update(last_error="x" * 10_000_000, verdict="y" * 10_000_000)
    wanted = PoisonFilter().fixed("default")
    job = operations.start_job(Act.RETRY, wanted, total=1).pk

    for page in pages(record, job):
        assert len(admin_client.get(page).content) < 200_000, page


INLINE = re.compile(
    r"<script(?![^>]*\bsrc=)[^>]*>|<style\b|\sstyle\s*=|\son[a-z]+\s*=|javascript:", re.IGNORECASE
)


def test_no_page_needs_an_inline_script_or_style(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    record = poisoned(payload={"a": 1}, queue="ledger", stream="s")
    job = operations.start_job(Act.RETRY, PoisonFilter().fixed("default"), total=1).pk
    edited = admin_client.post(url("poisonrecord", "edit", record.pk), {"payload": "[1]"})
    answers = [edited, *(admin_client.get(page) for page in pages(record, job))]

    for answer in answers:
        found = INLINE.search(answer.content.decode())
        assert found is None, (answer.request["PATH_INFO"], found)


def test_every_field_has_a_label(admin_client: Client, poisoned) -> None:
    record = poisoned(payload={"a": 1})
    job = operations.start_job(Act.RETRY, PoisonFilter().fixed("default"), total=1).pk

    for page in pages(record, job):
        html = admin_client.get(page).content.decode()
        labelled = set(re.findall(r'<label[^>]*\bfor="([^"]+)"', html))
        for tag in re.findall(r"<(?:input|select|textarea)\b[^>]*>", html):
            if re.search(r'type="(hidden|submit)"', tag) or "aria-label=" in tag:
                continue
            ids = re.findall(r'\bid="([^"]+)"', tag)
            assert set(ids) & labelled, (page, tag)


site = AdminSite(name="ops")
site.register(PoisonRecord, PoisonRecordAdmin)
urlpatterns = [path("watch/", site.urls), path("", include("project.urls"))]


@pytest.mark.urls(__name__)
def test_another_admin_site_leads_nowhere_but_to_itself(admin_client: Client, poisoned) -> None:
    record = poisoned(payload={"a": 1}, stream="s")
    job = operations.start_job(Act.RETRY, PoisonFilter().fixed("default"), total=1).pk

    for page in pages(record, job):
        there = page.replace("/admin/", "/watch/")
        html = admin_client.get(there).content.decode()
        assert 'href="/admin/' not in html, there
        assert 'action="/admin/' not in html, there
    done = admin_client.post(f"/watch/deadletter/poisonrecord/{record.pk}/retry/")
    assert done.url == "/watch/deadletter/poisonrecord/records/"
