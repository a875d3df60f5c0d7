"""What the command refuses before it starts."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.django_db


def test_an_unknown_queue_is_refused_with_the_names_that_exist():
    with pytest.raises(CommandError, match=r"unknown queue maill \(existing: default\)"):
        call_command("run_worker", "--queues", "default,maill", "--drain")


def test_no_queue_at_all_is_refused():
    with pytest.raises(CommandError, match="unknown queue"):
        call_command("run_worker", "--queues", " , ", "--drain")


def test_an_unknown_database_is_refused():
    with pytest.raises(CommandError, match="there is no database 'third'"):
        call_command("run_worker", "--database", "third", "--drain")


@pytest.mark.parametrize(
    "arguments",
    [("--batch", "0"), ("--batch", "many"), ("--lease", "0"), ("--lease", "-5"), ("--poll", "nan")],
    ids=" ".join,
)
def test_a_bad_number_is_refused(arguments):
    with pytest.raises(CommandError, match=arguments[0]):
        call_command("run_worker", *arguments, "--drain")
