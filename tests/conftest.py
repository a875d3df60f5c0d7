"""What every test stands on: the database, and on which of the two it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models.expressions import Col
from django.db.models.sql.compiler import PositionRef

pytest_plugins = ["tests.fixtures", "tests.brokers"]

VENDORS = {"postgresql_only": "postgresql", "sqlite_only": "sqlite"}
#: Markers of tests that are skipped unless they are asked for, and why.
ASKED_FOR = {
    "cluster": 'starts a cluster: `make test-more ARGS="cluster"` or `pytest -m cluster` runs it',
    "wagtail": 'installs Wagtail: `make test-more ARGS="wagtail"` or `pytest -m wagtail` runs it',
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {name: why for name, why in ASKED_FOR.items() if name not in config.getoption("-m")}
    for item in items:
        for name, why in left_out.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=why))
        for name, vendor in VENDORS.items():
            marker = item.get_closest_marker(name)
            if marker is not None and connection.vendor != vendor:
                reason = marker.kwargs.get("reason") or (marker.args or [f"needs {vendor}"])[0]
                item.add_marker(pytest.mark.skip(reason=f"{vendor} only: {reason}"))


#: What Python reports when a process is started.
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_started: list[str] = []


def _note_start(event: str, arguments: object) -> None:
    if event in STARTS:
        _started.append(event)


sys.addaudithook(_note_start)


@pytest.fixture(autouse=True)
def starts_no_process_unless_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep `make test-fast` free of processes: a test that starts one carries the marker."""
    _started.clear()
    yield
    if _started and request.node.get_closest_marker("process") is None:
        pytest.fail(f"the test started a process ({_started[0]}): mark it with pytest.mark.process")


@pytest.fixture(scope="session")
def vendor() -> str:
    return connection.vendor


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep SQLite in a file of this run: threads and subprocesses cannot share :memory:."""
    for alias, database in settings.DATABASES.items():
        if database["ENGINE"] == "django.db.backends.sqlite3":
            path = tmp_path_factory.mktemp("database") / f"{alias}.sqlite3"
            database.setdefault("TEST", {})["NAME"] = str(path)
        elif alias != "default":
            name = settings.DATABASES["default"].get("TEST", {}).get("NAME")
            name = name or f"test_{settings.DATABASES['default']['NAME']}"
            database.setdefault("TEST", {})["NAME"] = f"{name}_{alias}"


@pytest.fixture(autouse=True, scope="session")
def no_sort_by_what_is_selected() -> Iterator[None]:
    """
    Refuse every query that sorts by the readable form of a time: see tests/plans/test_times.py.

    Django sorts by the number of a column that is selected under its own name.
    """
    from deadletter.models.fields import MomentField  # the apps are ready by now

    real = PositionRef.as_sql

    def as_sql(self: Any, compiler: Any, connection: Any) -> Any:
        is_time = isinstance(self.source, Col) and isinstance(self.source.target, MomentField)
        assert not is_time or compiler.query.distinct, (
            f"sorts by {self.source.target} as it is selected, which no index knows"
        )
        return real(self, compiler, connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PositionRef, "as_sql", as_sql)
        yield
