"""
A Wagtail site in a folder of the test, with Wagtail and deadletter in an environment of their own.

The environment and a site as `wagtail start` makes it, migrated on SQLite without deadletter, are
kept in the folder .wagtail. A test gets a copy, to which the settings of docs/wagtail.md are added:
what happens to a site that exists when deadletter comes to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "wagtail.md"
CACHE = ROOT / ".wagtail" / f"{sys.version_info[0]}.{sys.version_info[1]}"
REQUIREMENTS = ["wagtail>=8,<9", "psycopg[binary]", "--editable", f"{ROOT}[tasks]"]

#: The site's page. {region} is code of the site that the index calls.
MODELS = '''
from wagtail.fields import RichTextField
from wagtail.models import Page
from wagtail.search import index


class HomePage(Page):
    body = RichTextField(blank=True)

    content_panels = [*Page.content_panels, "body"]
    search_fields = [*Page.search_fields, index.SearchField("region")]

    def region(self):
        """Return what follows the comma in a title such as "Lisbon, Portugal"."""
        return {region}
'''
BROKEN, REPAIRED = 'self.title.split(", ")[1]', 'self.title.partition(", ")[2]'

#: Settings of the test, read after those of the page: short delays, a quick database.
LOCAL = """
from mysite.settings.base import INSTALLED_APPS

# Wagtail's index on PostgreSQL needs it since Django 6.1.
INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.postgres"]
DATABASES = {{"default": {database}}}
DEADLETTER = {{"QUEUES": {{"default": {{"max_attempts": 3, "cooldown": 0}}}}}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""
SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 60,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
}


class NotInstalled(Exception):
    """Wagtail cannot be installed here; the text is one line."""


class WagtailSite:
    """A site: its folder, its commands, and its editor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.editor: subprocess.Popen[str] | None = None

    def add_deadletter(self, database: dict[str, Any]) -> None:
        """Do what the page says: settings, the backend, migrations."""
        for file, text in samples().items():
            with (self.folder / file).open("a") as opened:
                opened.write(f"\n{text}")
        local = LOCAL.format(database=repr(database))
        (self.folder / "mysite/settings/local.py").write_text(local)
        self.manage("migrate", "--verbosity=0")

    def write_models(self, region: str) -> None:
        (self.folder / "home/models.py").write_text(MODELS.format(region=region))

    def manage(self, *arguments: str, code: int = 0) -> str:
        """Run a command of the site and return what it printed."""
        return _run(["bin/python", "manage.py", *arguments], self.folder, code=code).stdout

    def drain(self) -> dict[str, int]:
        """Run a worker until nothing is due; return what it counted."""
        done = _run(["bin/python", "manage.py", "run_worker", "--drain"], self.folder)
        (line,) = re.findall(r"stopped: (.+)", done.stderr)
        found = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", line)}
        # How many were released depends on how many of a stream were claimed together.
        return {name: found[name] for name in ("completed", "failed", "poisoned", "deferred")}

    def ask(self, act: str, **arguments: Any) -> Any:
        """Let the editor act; see tests/wagtail/editor.py."""
        assert self.editor is not None
        assert self.editor.stdin is not None
        print(json.dumps([act, arguments]), file=self.editor.stdin, flush=True)
        return self._answer()

    @contextmanager
    def edited(self) -> Iterator[WagtailSite]:
        """Have an editor for as long as the block lasts."""
        log = self.folder / "editor.log"
        with log.open("w") as opened:
            self.editor = subprocess.Popen(
                [CACHE / "bin/python", ROOT / "tests/wagtail/editor.py"],
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                text=True,
            )
        try:
            self._answer()
            yield self
        finally:
            # It ends with its input.
            self.editor.communicate(timeout=PATIENCE)

    def _answer(self) -> Any:
        assert self.editor is not None
        assert self.editor.stdout is not None
        line = self.editor.stdout.readline()
        assert line, f"the editor ended:\n{(self.folder / 'editor.log').read_text()}"
        answer = json.loads(line)
        assert "raised" not in answer, answer["raised"]
        return answer["returned"]


def samples() -> dict[str, str]:
    """Return the Python samples of the page by the file that each one names."""
    fenced = re.compile(r"^( *)```python\n *# (\S+\.py)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
    blocks = fenced.findall(PAGE.read_text())
    return {file: re.sub(rf"^{indent}", "", text, flags=re.M) for indent, file, text in blocks}


def make_site(folder: Path) -> WagtailSite:
    """
    Copy the site of the cache, which is made if need be, into a folder.

    Raises: NotInstalled.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        # Both databases may be tested at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = CACHE / "installed"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        ours = [project["dependencies"], project["optional-dependencies"]["tasks"]]
        wanted = json.dumps([REQUIREMENTS, ours, MODELS, LOCAL])
        if not stamp.exists() or stamp.read_text() != wanted:
            _install()
            _start()
            stamp.write_text(wanted)
    shutil.copytree(CACHE / "site", folder)
    return WagtailSite(folder)


@contextmanager
def new_postgresql_database(name: str) -> Iterator[dict[str, Any]]:
    """Make a database on the server of DATABASE_URL; give Django's settings for it; drop it."""
    import psycopg

    url = urlsplit(os.environ["DATABASE_URL"])
    with psycopg.connect(urlunsplit(url), autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            given = psycopg.conninfo.conninfo_to_dict(urlunsplit(url))
            yield {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": name,
                "USER": given.get("user", ""),
                "PASSWORD": given.get("password", ""),
                "HOST": given.get("host", ""),
                "PORT": given.get("port", ""),
            }
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def sqlite_database(folder: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "db.sqlite3"),
        "OPTIONS": SQLITE_OPTIONS,
    }


def _install() -> None:
    if not (CACHE / "bin/python").exists():
        venv.create(CACHE, with_pip=True)
    command = ["bin/python", "-m", "pip", "install", "--quiet", "--upgrade", *REQUIREMENTS]
    done = _run(command, ROOT, code=None)
    if "ResolutionImpossible" in done.stderr:
        raise AssertionError(f"Wagtail and deadletter cannot be installed together:\n{done.stderr}")
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.startswith("ERROR")][-1:]
        raise NotInstalled(f"Wagtail cannot be installed: {' '.join(last) or done.stderr[-200:]}")


def _start() -> None:
    """Make a site as `wagtail start` does, with a page that has a body and a code of its own."""
    folder = CACHE / "site"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _run(["bin/wagtail", "start", "mysite", str(folder)], CACHE)
    site = WagtailSite(folder)
    site.write_models(REPAIRED)
    local = LOCAL.format(database=repr(sqlite_database(folder)))
    (folder / "mysite/settings/local.py").write_text(local)
    site.manage("makemigrations", "home", "--verbosity=0")
    site.manage("migrate", "--verbosity=0")


def _run(
    command: list[str], folder: Path, *, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [CACHE / command[0], *command[1:]],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    assert code is None or done.returncode == code, said
    return done


def _environment() -> dict[str, str]:
    """Return the environment without what belongs to the tests."""
    ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "PYTHONWARNINGS")
    return {key: value for key, value in os.environ.items() if key not in ours}
