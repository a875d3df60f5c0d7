"""What `manage.py check` says about settings and databases. Ids are stable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.core import checks
from django.db import connections

from deadletter import FailureReason
from deadletter.checks import check_databases, check_settings
from deadletter.conf import get_settings
from tests.patience import PATIENCE


def found(settings, value) -> list[tuple[str, str]]:
    settings.DEADLETTER = value
    return [(message.id, message.msg) for message in check_settings(None)]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"QUEUES": {}},
        {"QUEUES": {"mail": {"max_attempts": None, "backoff_base": 1, "cooldown": None}}},
        {"QUEUES": {"mail": {"dead_queue": "dead"}, "dead": {}}},
        {"QUEUES": {"mail": {"dead_queue": "default"}}},
        {"PERMANENT_REASONS": [FailureReason.VALIDATION_FAILURE, 5]},
        {"STREAM_CAP": 1, "PAYLOAD_LIMIT": 1, "UNREGISTERED_BASE": 0.5, "UNREGISTERED_CAP": 5},
        {"CLASSIFY": "tests.worker.test_classify.by_hand"},
        {"CLASSIFY": None},
    ],
    ids=str,
)
def test_good_settings_pass(settings, value):
    assert found(settings, value) == []
    assert get_settings()


def test_a_site_without_time_zones_is_refused(settings):
    settings.USE_TZ = False

    assert found(settings, {}) == [("deadletter.E011", "deadletter needs USE_TZ = True.")]


@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_settings_are_a_dict(settings, value):
    assert found(settings, value) == [("deadletter.E001", "DEADLETTER: DEADLETTER must be a dict.")]


def test_an_unknown_key_is_an_error_with_the_known_ones_in_the_hint(settings):
    settings.DEADLETTER = {"QUEUE": {}}

    (message,) = check_settings(None)

    assert (message.id, message.msg) == ("deadletter.E002", "DEADLETTER: unknown key 'QUEUE'.")
    assert "QUEUES" in message.hint
    assert message.level == checks.ERROR


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("QUEUES", []),
        ("QUEUES", {"a b": {}}),
        ("QUEUES", {5: {}}),
        ("QUEUES", {"mail": 5}),
        ("PERMANENT_REASONS", [1234]),
        ("PERMANENT_REASONS", 5),
        ("PERMANENT_REASONS", ["TIMEOUT"]),
        ("CLASSIFY", "no.such.thing"),
        ("CLASSIFY", "plain"),
        ("CLASSIFY", 5),
        ("PAYLOAD_LIMIT", 0),
        ("PAYLOAD_LIMIT", "1"),
        ("PAYLOAD_LIMIT", True),
        ("STREAM_CAP", -1),
        ("STREAM_CAP", None),
        ("UNREGISTERED_BASE", -1),
        ("UNREGISTERED_CAP", "-60"),
    ],
    ids=str,
)
def test_a_bad_value_is_an_error_that_names_its_key(settings, key, value):
    (problem,) = found(settings, {key: value})

    assert problem[0] == "deadletter.E003"
    assert problem[1].startswith(f"DEADLETTER: {key}: ")
    with pytest.raises(ValueError, match=key):
        get_settings()


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ({"mail": {"max_tries": 3}}, "max_tries: a queue has no such field."),
        ({"mail": {"name": "x"}}, "name: cannot be set here."),
        ({"mail": {"max_attempts": -1}}, "max_attempts: "),
        ({"mail": {"jitter": 2}}, "jitter: "),
        ({"mail": {"backoff_base": "soon"}}, "backoff_base: "),
        ({"mail": {"on_poison": "explode"}}, "on_poison: "),
        ({"mail": {"dead_queue": "mail"}}, "dead_queue: a queue cannot be its own dead queue."),
        ({"mail": {"dead_queue": "gone"}}, "dead_queue: 'gone' is not declared"),
        (
            {"mail": {"dead_queue": "a"}, "a": {"dead_queue": "b"}, "b": {}},
            "dead_queue: 'a' already has a dead queue of its own",
        ),
    ],
    ids=str,
)
def test_a_bad_declared_policy_is_an_error_that_names_queue_and_field(settings, queues, text):
    problems = found(settings, {"QUEUES": queues})

    assert [id for id, _ in problems] == ["deadletter.E004"]
    assert problems[0][1].startswith(f'DEADLETTER["QUEUES"]["mail"]: {text}')


@pytest.mark.django_db
def test_the_databases_of_the_tests_pass():
    assert check_databases(None, databases=["default"]) == []


def test_no_database_is_asked_unless_named():
    assert check_databases(None, databases=None) == []


@pytest.mark.sqlite_only(reason="PostgreSQL has no such mode")
@pytest.mark.django_db
def test_sqlite_without_begin_immediate_is_a_warning(monkeypatch):
    monkeypatch.setattr(connections["default"], "transaction_mode", None)

    (message,) = check_databases(None, databases=["default"])

    assert (message.id, message.level) == ("deadletter.W001", checks.WARNING)
    assert "transaction_mode" in message.hint


@pytest.mark.sqlite_only(reason="PostgreSQL stores moments")
@pytest.mark.django_db
def test_sqlite_with_local_times_is_a_warning(monkeypatch):
    monkeypatch.setattr(connections["default"], "timezone_name", "Europe/Berlin")

    (message,) = check_databases(None, databases=["default"])

    assert (message.id, message.level) == ("deadletter.W002", checks.WARNING)
    assert "Europe/Berlin" in message.msg


@pytest.mark.postgresql_only(reason="SQLite knows one level of isolation")
@pytest.mark.django_db(transaction=True)
def test_another_level_of_isolation_is_an_error():
    with connections["default"].cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        try:
            (message,) = check_databases(None, databases=["default"])
        finally:
            cursor.execute("RESET default_transaction_isolation")

    assert message.id == "deadletter.E008"
    assert "read committed" in message.msg


@pytest.mark.django_db
def test_another_database_system_is_an_error(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "oracle")

    (message,) = check_databases(None, databases=["default"])

    assert message.id == "deadletter.E005"


def test_a_site_without_the_admin_can_be_checked_and_worked_for(tmp_path):
    """Some run their workers with fewer apps; nothing outside the admin may need it."""
    (tmp_path / "lean.py").write_text(
        "SECRET_KEY = 'of a test'\n"
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'deadletter']\n"
        "ROOT_URLCONF = 'deadletter.urls'\n"
        "USE_TZ = True\n"
        "TEMPLATES = [{'BACKEND': 'django.template.backends.django.DjangoTemplates',"
        " 'APP_DIRS': True}]\n"
        f"DATABASES = {{'default': {{'ENGINE': 'django.db.backends.sqlite3',"
        f" 'NAME': {str(tmp_path / 'lean.sqlite3')!r},"
        " 'OPTIONS': {'transaction_mode': 'IMMEDIATE'}}}\n"
    )
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "lean",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(settings.BASE_DIR)]),
    }
    for arguments in (["check"], ["migrate", "-v0"], ["run_worker", "--drain"]):
        done = subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
