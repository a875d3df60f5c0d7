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
from deadletter.checks import (
    check_databases,
    check_handlers,
    check_options,
    check_settings,
    look_up_handlers,
)
from deadletter.conf import get_settings
from deadletter.worker.registry import registry
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
        {"CLASSIFY": "tests.worker.test_failure.by_hand"},
        {"CLASSIFY": None},
        {"FINGERPRINT": "tests.worker.test_failure.by_hand", "GROUPS_LIMIT": 1},
        {"RELEASE": "2.7.0", "GROUPS_KEPT": None, "TAGS_KEPT": "30d"},
        {"RELEASE": None, "GROUPS_KEPT": "365d", "TAGS_KEPT": None, "FINGERPRINT": None},
        {"RELEASE": str},
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
        ("RELEASE", 270),
        ("RELEASE", ["2.7.0"]),
        ("FINGERPRINT", "no.such.thing"),
        ("FINGERPRINT", 5),
        ("GROUPS_LIMIT", 0),
        ("GROUPS_LIMIT", "100"),
        ("GROUPS_KEPT", "-1d"),
        ("GROUPS_KEPT", "soon"),
        ("TAGS_KEPT", [1]),
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
        ({"mail": {"unregistered_attempts": -1}}, "unregistered_attempts: "),
        (
            {"mail": {"reason_policies": {"UNKNOWN": {"max_attempts": -1}}}},
            "reason_policies: UNKNOWN: max_attempts: expected a whole number",
        ),
        ({"mail": {"reason_policies": {"OUTAGE": {}}}}, "reason_policies: 'OUTAGE' is not a"),
        ({"mail": {"on_poison": "explode"}}, "on_poison: "),
        ({"mail": {"dead_queue": "mail"}}, "dead_queue: a queue cannot be its own dead queue."),
        ({"mail": {"dead_queue": "gone"}}, "dead_queue: 'gone' is not declared"),
        (
            {"mail": {"dead_queue": "a", "stream_policy": "halt"}, "a": {}},
            "stream_policy: halt needs on_poison quarantine: with dead_queue no record is left",
        ),
        (
            {"mail": {"on_poison": "discard", "stream_policy": "halt"}},
            "stream_policy: halt needs on_poison quarantine: with discard no record is left",
        ),
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
@pytest.mark.parametrize("options", [{}, {"transaction_mode": None}, {"transaction_mode": "defer"}])
def test_sqlite_without_begin_immediate_is_a_warning(monkeypatch, options):
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)

    (message,) = check_options(None)

    assert (message.id, message.level) == ("deadletter.W001", checks.WARNING)
    assert "transaction_mode" in message.hint


@pytest.mark.sqlite_only(reason="PostgreSQL has no such mode")
@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate", "EXCLUSIVE"])
def test_sqlite_with_begin_immediate_passes_before_the_first_connection(monkeypatch, mode):
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"transaction_mode": mode})
    monkeypatch.setattr(connections["default"], "transaction_mode", None, raising=False)

    assert check_options(None) == []


@pytest.mark.sqlite_only(reason="PostgreSQL stores moments")
def test_sqlite_with_local_times_is_a_warning(monkeypatch):
    monkeypatch.setattr(connections["default"], "timezone_name", "Europe/Berlin")

    (message,) = check_options(None)

    assert (message.id, message.level) == ("deadletter.W002", checks.WARNING)
    assert "Europe/Berlin" in message.msg


@pytest.mark.sqlite_only(reason="PostgreSQL has no such mode")
@pytest.mark.django_db(databases=["default", "second"])
def test_a_named_database_is_judged_too_and_the_usual_one_once(monkeypatch):
    for alias in ("default", "second"):
        monkeypatch.setitem(connections[alias].settings_dict, "OPTIONS", {})

    found = [*check_options(None), *check_databases(None, databases=["default", "second"])]

    assert [message.id for message in found] == ["deadletter.W001", "deadletter.W001"]
    assert ["'default'" in found[0].msg, "'second'" in found[1].msg] == [True, True]


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


LEAN = """
SECRET_KEY = 'of a test'
INSTALLED_APPS = ['django.contrib.contenttypes', 'deadletter', *{apps}]
ROOT_URLCONF = 'deadletter.urls'
USE_TZ = True
TEMPLATES = [{{'BACKEND': 'django.template.backends.django.DjangoTemplates', 'APP_DIRS': True}}]
DATABASES = {{'default': {{
    'ENGINE': 'django.db.backends.sqlite3', 'NAME': {name!r}, 'OPTIONS': {options!r}
}}}}
"""
IMMEDIATE = {"transaction_mode": "IMMEDIATE"}


@pytest.fixture
def manage(tmp_path):
    """Run a command of a small site of its own, with these apps and options of SQLite."""

    def run(*arguments, apps=(), options=IMMEDIATE):
        name = str(tmp_path / "lean.sqlite3")
        (tmp_path / "lean.py").write_text(LEAN.format(apps=apps, name=name, options=options))
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "lean",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(settings.BASE_DIR)]),
        }
        return subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


@pytest.fixture
def app_with_handlers(tmp_path):
    def write(name, source):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "handlers.py").write_text(source)
        return name

    return write


@pytest.mark.process
def test_a_site_without_the_admin_can_be_checked_and_worked_for(manage):
    """Some run their workers with fewer apps; nothing outside the admin may need it."""
    for arguments in (["check"], ["migrate", "-v0"], ["run_worker", "--drain"]):
        done = manage(*arguments)
        assert done.returncode == 0, done.stderr
        assert "deadletter." not in done.stderr


@pytest.mark.process
def test_check_warns_of_a_mode_that_is_missing_and_only_then(manage):
    assert "deadletter.W001" in manage("check", options={}).stderr
    assert "deadletter.W001" not in manage("check", "--database", "default").stderr


@pytest.mark.process
def test_two_handlers_of_one_name_are_an_error_that_names_both(manage, app_with_handlers):
    source = "from deadletter import handler\n@handler('mail.send')\ndef {0}(message): pass\n"
    apps = (
        app_with_handlers("shop", source.format("ship")),
        app_with_handlers("post", source.format("deliver")),
        app_with_handlers("inn", source.format("welcome")),
    )

    done = manage("check", apps=apps)

    assert done.returncode == 1
    assert done.stderr.count("deadletter.E012") == 2
    assert (
        "message name 'mail.send' has two handlers: shop.handlers.ship and post.handlers.deliver."
    ) in done.stderr
    assert "shop.handlers.ship and inn.handlers.welcome." in done.stderr


@pytest.mark.process
def test_two_flows_of_one_version_are_an_error_that_names_both(manage, app_with_handlers):
    source = (
        "from deadletter.instances import orchestration\n"
        "@orchestration('order', version='1')\ndef {0}(run, event): pass\n"
    )
    apps = (
        app_with_handlers("shop", source.format("one")),
        app_with_handlers("post", source.format("other")),
    )

    done = manage("check", apps=apps)

    assert done.returncode == 1
    assert "deadletter.E012" in done.stderr
    assert "shop.handlers.one and post.handlers.other." in done.stderr


@pytest.mark.process
def test_handlers_that_cannot_be_imported_are_a_warning(manage, app_with_handlers):
    done = manage("check", apps=(app_with_handlers("shop", "import no_such_module\n"),))

    assert done.returncode == 0, done.stderr
    assert "(deadletter.W003) shop.handlers cannot be imported" in done.stderr
    assert "no_such_module" in done.stderr


def test_the_handlers_of_the_tests_pass(settings):
    settings.DEADLETTER = {"BROKERS": {"other": {"url": "redis://localhost"}}}

    assert check_handlers(None) == []


@pytest.mark.process
def test_a_payload_class_that_cannot_be_resolved_is_an_error_that_names_it(
    manage, app_with_handlers
):
    source = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from deadletter import handler\n"
        "@dataclass\nclass Order:\n    address: Address\n"
        "@handler('orders.ship', payload=Order)\ndef ship(message): pass\n"
    )
    apps = (app_with_handlers("shop", source),)

    done = manage("check", apps=apps)

    assert done.returncode == 1
    assert "(deadletter.E013) handler orders.ship: payload: Order: name 'Address'" in done.stderr


@pytest.fixture
def looked_up():
    look_up_handlers.cache_clear()
    yield
    look_up_handlers.cache_clear()


def test_handlers_are_looked_up_once_and_a_module_that_fails_is_logged(
    looked_up, monkeypatch, caplog
):
    calls = []

    def modules_that_fail():
        calls.append(1)
        yield "shop.handlers", ImportError("no module carriers")

    monkeypatch.setattr("deadletter.checks._modules_that_fail", modules_that_fail)

    look_up_handlers()
    look_up_handlers()

    assert calls == [1]
    (told,) = [r for r in caplog.records if getattr(r, "event", "") == "handlers_unreadable"]
    assert told.getMessage() == (
        "handlers cannot be imported, so their payloads are not checked: "
        "shop.handlers: ImportError: no module carriers"
    )


def test_looking_handlers_up_imports_them(looked_up):
    look_up_handlers()

    assert "demo.greet" in registry.names()
