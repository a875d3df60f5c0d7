"""
An editor of the Wagtail site, in a process of its own: `python editor.py` in the site's folder.

Reads requests as lines of JSON ([act, arguments]) and answers each with a line: what the act
returned, or the traceback of what it raised. Acts go through Wagtail's admin views where it has
one.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[0] = str(Path.cwd())
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings.dev")

import django  # noqa: E402

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import reverse  # noqa: E402
from django.utils import timezone  # noqa: E402
from django_tasks import TaskResult, default_task_backend  # noqa: E402
from home import tasks  # noqa: E402
from home.models import HomePage  # noqa: E402
from wagtail.images.models import Image  # noqa: E402
from wagtail.images.tests.utils import get_test_image_file  # noqa: E402
from wagtail.models import Page, ReferenceIndex, Site  # noqa: E402

from deadletter.models import Message, PoisonRecord, Result  # noqa: E402

#: The formset of comments, which Wagtail's editor always posts.
COMMENTS = {f"comments-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL")}


class Editor:
    """The acts; each returns what JSON can hold."""

    def __init__(self) -> None:
        self.client = Client(HTTP_HOST="localhost")
        user = get_user_model().objects.create_superuser("editor", "editor@example.org", "pw")
        self.client.force_login(user)

    def create(self, title: str, body: str = "", publish: bool = False) -> int:
        """Create a page below the home page, as a draft unless it is to be published."""
        parent = Site.objects.get().root_page
        address = reverse("wagtailadmin_pages:add", args=("home", "homepage", parent.pk))
        self._post(address, self._form(title, body, publish))
        return HomePage.objects.get(draft_title=title).pk

    def edit(self, pk: int, title: str, body: str = "", publish: bool = False) -> None:
        address = reverse("wagtailadmin_pages:edit", args=(pk,))
        self._post(address, self._form(title, body, publish))

    def delete(self, pk: int) -> None:
        self._post(reverse("wagtailadmin_pages:delete", args=(pk,)), {})

    def create_and_roll_back(self, title: str) -> int:
        """Create a page and undo it; returns the number of tasks that its transaction stored."""
        with transaction.atomic():
            Site.objects.get().root_page.add_child(instance=HomePage(title=title))
            stored = Message.objects.count()
            transaction.set_rollback(True)
        return stored

    def upload_image(self, title: str) -> list[Any]:
        image = Image.objects.create(title=title, file=get_test_image_file(f"{title}.png"))
        return [image.pk, image.file.path]

    def delete_image(self, pk: int) -> None:
        self._post(reverse("wagtailimages:delete", args=(pk,)), {})

    def counts(self) -> dict[str, int]:
        """Count messages by state and name, poison by name, results by outcome and name."""
        found: Counter[str] = Counter()
        now = timezone.now()
        for message in Message.objects.all():
            found[f"{message.state(now)} {_short(message.name)}"] += 1
        for poison in PoisonRecord.objects.all():
            found[f"dead {_short(poison.name)}"] += 1
        for result in Result.objects.all():
            found[f"{result.outcome} {_short(result.name)}"] += 1
        return dict(found)

    def streams(self) -> list[list[str | None]]:
        """Return name and stream of each message, in the order in which they were stored."""
        return [[_short(m.name), m.stream] for m in Message.objects.order_by("pk")]

    def enqueue_own_task(self, title: str) -> str:
        """Enqueue the task of docs/wagtail.md and return the id of its result."""
        return tasks.count_pages.enqueue(title=title).id

    def read_own_result(self, id: str) -> Any:
        return tasks.count_pages.get_result(id).return_value

    def read_result(self, id: int) -> dict[str, Any]:
        """Read the result of a task of Wagtail, by the framework that Wagtail imports."""
        result = default_task_backend.get_result(str(id))
        assert isinstance(result, TaskResult)
        return {
            "path": result.task.module_path,
            "status": str(result.status),
            "args": result.args,
            "attempts": result.attempts,
            "errors": [error.exception_class_path for error in result.errors],
        }

    def read_record(self, id: int) -> str:
        """Return the page of a poison record in Django's admin."""
        response = self.client.get(reverse("admin:deadletter_poisonrecord_change", args=(id,)))
        assert response.status_code == 200
        return response.content.decode()

    def forget_tasks(self) -> None:
        """Delete what a test left: messages and results, but no poison."""
        Message.objects.all().delete()
        Result.objects.all().delete()

    def search(self, text: str) -> list[int]:
        """Return the pages that the index finds."""
        return [page.pk for page in Page.objects.live().search(text)]

    def references_to(self, pk: int) -> list[str]:
        """Return the ids of the pages that link to a page, from the reference index."""
        found = ReferenceIndex.get_references_to(Page.objects.get(pk=pk))
        return [reference.object_id for reference in found]

    def _form(self, title: str, body: str, publish: bool) -> dict[str, str]:
        slug = title.lower().replace(" ", "-").replace(",", "")
        blocks = [{"key": "a", "type": "unstyled", "depth": 0, "text": body or " "}]
        raw: dict[str, Any] = {"blocks": blocks, "entityMap": {}}
        if body.startswith("page:"):
            link = {"type": "LINK", "mutability": "MUTABLE", "data": {"id": int(body[5:])}}
            raw["entityMap"] = {"0": link}
            blocks[0] |= {"entityRanges": [{"offset": 0, "length": len(body), "key": 0}]}
        form = {"title": title, "slug": slug, "body": json.dumps(raw), **COMMENTS}
        return form | ({"action-publish": "1"} if publish else {})

    def _post(self, address: str, form: dict[str, str]) -> None:
        response = self.client.post(address, form)
        assert response.status_code == 302, response.context and response.context.get("errors")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def main() -> None:
    editor = Editor()
    print(json.dumps({"returned": None}), flush=True)
    for line in sys.stdin:
        act, arguments = json.loads(line)
        try:
            answer = {"returned": getattr(editor, act)(**arguments)}
        except Exception:  # noqa: BLE001 - the test shows it
            answer = {"raised": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
