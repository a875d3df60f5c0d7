"""
Wagtail's tasks on deadletter, in a site that `wagtail start` made, with real worker processes.

Runs with `make test-more ARGS="wagtail"`, or `pytest -m wagtail tests/wagtail`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from django.db import connection

from tests.wagtail.site import (
    BROKEN,
    REPAIRED,
    NotInstalled,
    WagtailSite,
    make_site,
    new_postgresql_database,
    sqlite_database,
)

pytestmark = [pytest.mark.wagtail, pytest.mark.process, pytest.mark.slow]

PATH = "modelsearch.tasks.insert_or_update_object_task"
SEARCH, REFERENCES = "insert_or_update_object_task", "update_reference_index_task"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WagtailSite]:
    try:
        site = make_site(tmp_path_factory.mktemp("wagtail") / "site")
    except NotInstalled as error:
        pytest.skip(str(error))
    if connection.vendor == "sqlite":
        site.add_deadletter(sqlite_database(site.folder))
        yield site
        return
    with new_postgresql_database("wagtail") as database:
        site.add_deadletter(database)
        yield site


@pytest.fixture(scope="module")
def edited(migrated: WagtailSite) -> Iterator[WagtailSite]:
    with migrated.edited():
        yield migrated


@pytest.fixture
def site(edited: WagtailSite) -> WagtailSite:
    """The site with an editor and without tasks; no test leaves poison behind."""
    edited.ask("forget_tasks")
    assert edited.ask("counts") == {}
    return edited


def drained(*, completed: int = 0, failed: int = 0, poisoned: int = 0) -> dict[str, int]:
    """What a worker says that it has done."""
    return {"completed": completed, "failed": failed, "poisoned": poisoned, "deferred": 0}


def test_the_settings_of_the_page_pass_every_check(migrated):
    assert "no issues" in migrated.manage("check", "--database", "default")


def test_pages_are_created_edited_published_and_deleted_and_every_task_succeeds(site):
    lisbon = site.ask("create", title="Lisbon, Portugal")
    site.ask("edit", pk=lisbon, title="Lisboa, Portugal")
    site.ask("edit", pk=lisbon, title="Lisboa, Portugal", publish=True)
    porto = site.ask("create", title="Porto, Portugal", body=f"page:{lisbon}", publish=True)
    # Two for a draft, two for its edit, three for each page that is published.
    assert site.ask("counts") == {f"pending {SEARCH}": 10, f"pending {REFERENCES}": 10}
    assert (site.ask("search", text="Portugal"), site.ask("references_to", pk=lisbon)) == ([], [])

    tally = site.drain()
    found = site.ask("search", text="Portugal"), site.ask("references_to", pk=lisbon)
    site.ask("delete", pk=porto)

    assert tally == drained(completed=20)
    assert (sorted(found[0]), found[1]) == ([lisbon, porto], [str(porto)])
    # Wagtail removes a page from both indexes in the request that deletes it.
    assert site.ask("counts") == {f"successful {SEARCH}": 10, f"successful {REFERENCES}": 10}
    assert site.ask("search", text="Portugal") == [lisbon]
    assert site.ask("references_to", pk=lisbon) == []


def test_the_tasks_of_one_page_are_in_order_and_others_do_not_wait(site):
    first = site.ask("create", title="Faro, Portugal")
    second = site.ask("create", title="Braga, Portugal")

    assert site.ask("streams") == [
        [SEARCH, f"search:home.homepage:{first}"],
        [REFERENCES, f"references:home.homepage:{first}"],
        [SEARCH, f"search:home.homepage:{first}"],
        [REFERENCES, f"references:home.homepage:{first}"],
        [SEARCH, f"search:home.homepage:{second}"],
        [REFERENCES, f"references:home.homepage:{second}"],
        [SEARCH, f"search:home.homepage:{second}"],
        [REFERENCES, f"references:home.homepage:{second}"],
    ]


def test_a_rollback_of_the_page_is_a_rollback_of_its_tasks(site):
    stored = site.ask("create_and_roll_back", title="Evora, Portugal")

    assert stored == 2
    assert site.ask("counts") == {}


def test_tasks_of_the_site_run_beside_those_of_wagtail(site):
    page = site.ask("create", title="Sintra, Portugal", publish=True)
    result = site.ask("enqueue_own_task", title="Sintra, Portugal")

    tally = site.drain()

    assert tally == drained(completed=7)
    assert site.ask("read_own_result", id=result) == {"pages": 1}
    assert site.ask("search", text="Sintra") == [page]


def test_a_broken_task_is_poison_and_succeeds_when_the_site_is_repaired(site):
    site.write_models(BROKEN)
    page = site.ask("create", title="Madrid", publish=True)

    broken = site.drain()
    records = json.loads(site.manage("deadletter", "list", "--format", "json"))
    counts = site.ask("counts")
    shown = site.manage("deadletter", "show", str(records[0]["id"]))
    in_admin = unescape(site.ask("read_record", id=records[0]["id"]))
    dead = site.ask("read_result", id=records[0]["message_id"])
    site.write_models(REPAIRED)
    retried = site.manage("deadletter", "retry", "--name", PATH, "--yes", "--why", "no comma")
    repaired = site.drain()

    # Three search tasks, three attempts each; the reference index is not affected.
    assert broken == drained(completed=3, failed=6, poisoned=3)
    assert counts == {f"dead {SEARCH}": 3, f"successful {REFERENCES}": 3}
    for text in (shown, in_admin):
        assert PATH in text
        assert f"insert_or_update_object_task('home', 'homepage', '{page}')" in text
        assert "IndexError: list index out of range" in text
        assert "home.models" in text
    task = {"path": PATH, "args": ["home", "homepage", str(page)]}
    assert dead == task | {"status": "FAILED", "attempts": 3, "errors": ["builtins.IndexError"] * 3}
    assert "retried 3 of 3" in retried
    assert repaired == drained(completed=3)
    assert site.ask("counts") == {f"successful {SEARCH}": 3, f"successful {REFERENCES}": 3}
    alive = site.ask("read_result", id=records[0]["message_id"])
    assert alive == dead | {"status": "SUCCESSFUL", "attempts": 4}
    assert site.ask("search", text="Madrid") == [page]


def test_tasks_of_an_object_that_is_gone_are_dead_and_its_file_is_removed(site):
    image, path = site.ask("upload_image", title="harbour")
    site.ask("delete_image", pk=image)
    assert Path(path).exists()

    tally = site.drain()
    counts = site.ask("counts")
    removed = site.manage(
        "deadletter", "remove", "--text", "matching query does not exist", "--yes"
    )

    assert not Path(path).exists()
    assert tally == drained(completed=1, failed=4, poisoned=2)
    assert counts == {
        "successful delete_file_from_storage_task": 1,
        f"dead {SEARCH}": 1,
        f"dead {REFERENCES}": 1,
    }
    assert "removed 2 of 2" in removed
    assert site.ask("counts") == {
        "successful delete_file_from_storage_task": 1,
        f"removed {SEARCH}": 1,
        f"removed {REFERENCES}": 1,
    }
