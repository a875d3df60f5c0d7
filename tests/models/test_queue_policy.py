"""A field of a queue's policy is one field of the model: everything else derives from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deadletter import operations
from deadletter.admin.queues import QueueAdmin, QueueForm
from deadletter.models import Queue

ROOT = Path(__file__).parents[2]


def test_every_surface_has_the_fields_of_the_policy():
    policy = list(Queue.policy_fields())

    assert policy == [
        "max_attempts",
        "unregistered_attempts",
        "backoff_base",
        "backoff_cap",
        "jitter",
        "cooldown",
        "reason_policies",
        "lease_timeout",
        "expire_timeout",
        "on_poison",
        "dead_queue",
        "stream_policy",
        "poison_retention",
    ]
    assert list(operations.POLICY) == policy
    assert list(QueueForm.base_fields) == ["name", *policy, "why"]
    assert {*policy, *Queue.NOT_POLICY} == {field.name for field in Queue._meta.concrete_fields}


def test_every_field_of_the_policy_is_in_one_section_of_the_form():
    sections = [name for _title, names in Queue.POLICY_SECTIONS for name in names]
    shown = [name for _title, options in QueueAdmin.fieldsets for name in options["fields"]]

    assert sorted(sections) == sorted(Queue.policy_fields())
    assert shown == ["name", *sections]


#: What knows a field that only the model names.
NEW_FIELD = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "deadletter",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
    DEADLETTER={"QUEUES": {"mail": {"patience": "1h"}, "slow": {"patience": "soon"}}},
)
django.setup()

from datetime import timedelta
from django.core.checks import run_checks
from deadletter import operations
from deadletter.admin.queues import QueueAdmin, QueueForm
from deadletter.cli import queues

assert "patience" in operations.POLICY
assert "patience" in QueueForm.base_fields
assert hasattr(QueueAdmin, "shown_patience")
assert queues._fields(["patience=1h30m"]) == {"patience": timedelta(minutes=90)}
(problem,) = [error for error in run_checks() if error.id == "deadletter.E004"]
assert 'QUEUES"]["slow"]: patience: ' in problem.msg, problem
"""


@pytest.mark.process
def test_a_new_field_of_the_model_is_known_to_form_command_line_and_checks(tmp_path):
    shutil.copytree(
        ROOT / "deadletter", tmp_path / "deadletter", ignore=shutil.ignore_patterns("__pycache__")
    )
    model = tmp_path / "deadletter/models/queue.py"
    before, added = "    paused = models.", "    patience = SecondsField(null=True, blank=True)\n"
    source = model.read_text()
    assert source.count(before) == 1
    model.write_text(source.replace(before, added + before))

    done = subprocess.run(
        [sys.executable, "-c", NEW_FIELD],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
