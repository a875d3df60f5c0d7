"""What every test stands on: the database, and on which of the two it runs."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.db import connection

pytest_plugins = ["tests.fixtures"]

VENDORS = {"postgresql_only": "postgresql", "sqlite_only": "sqlite"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, vendor in VENDORS.items():
            marker = item.get_closest_marker(name)
            if marker is not None and connection.vendor != vendor:
                reason = marker.kwargs.get("reason") or (marker.args or [f"needs {vendor}"])[0]
                item.add_marker(pytest.mark.skip(reason=f"{vendor} only: {reason}"))


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
