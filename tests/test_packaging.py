"""What a user installs: the wheel holds everything, and works where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from django.conf import settings

from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.process,
    pytest.mark.sqlite_only(reason="one wheel for both databases, so once is enough"),
]

ROOT = Path(settings.BASE_DIR)

FILES = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        execute_from_command_line(sys.argv)
    """,
    "settings.py": """
        from pathlib import Path
        SECRET_KEY = "of the test"
        INSTALLED_APPS = ["deadletter", "shop"]
        DATABASES = {
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": Path(__file__).parent / "db.sqlite3",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            }
        }
        USE_TZ = True
        DEADLETTER = {"QUEUES": {"default": {}}}
    """,
    "shop/__init__.py": "",
    "shop/handlers.py": """
        from pathlib import Path
        from deadletter import handler

        @handler("shop.ship")
        def ship(message):
            Path("shipped").write_text(f"{message.payload['order']} at attempt {message.attempt}")
    """,
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
    "shop/management/commands/order.py": """
        from deadletter import send
        from django.core.management.base import BaseCommand

        class Command(BaseCommand):
            def handle(self, **options):
                send("shop.ship", {"order": 42})
    """,
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The wheel is built from the source distribution, so both are proved at once.
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("django_deadletter-*.whl"))


def test_the_wheel_holds_every_file_of_the_app_and_nothing_else(wheel: Path):
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    in_repository = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "deadletter").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == in_repository
    assert {Path(name).suffix for name in packed} >= {".py", ".sql", ".typed"}
    assert any(name.startswith("deadletter/migrations/0001") for name in packed)


def test_the_wheel_runs_a_message_in_an_empty_environment(wheel: Path, tmp_path: Path):
    python = empty_environment(tmp_path / "environment")
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    project = tmp_path / "project"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.split("\n")))

    run(python, "manage.py", "check", "--fail-level", "WARNING", cwd=project)
    run(python, "manage.py", "migrate", cwd=project)
    run(python, "manage.py", "order", cwd=project)
    run(python, "manage.py", "run_worker", "--drain", cwd=project)

    assert (project / "shipped").read_text() == "42 at attempt 1"


def empty_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def run(*command: str | Path, cwd: Path) -> None:
    # Neither our settings nor our source tree may leak into what a stranger would have.
    hidden = {"DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PYTHONPATH"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
