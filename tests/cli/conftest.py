"""`manage.py deadletter` inside the test's transaction, with its output and exit code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import load_command_class
from django.core.management.base import CommandError


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def column(self, heading: str) -> list[str]:
        """The cells under a heading of a table without blanks in them."""
        head, *rows = self.lines
        place = head.split().index(heading)
        return [row.split()[place] for row in rows]


class Terminal(io.StringIO):
    """Somebody who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def cli(db: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        command = load_command_class("deadletter", "deadletter")
        command._called_from_command_line = True  # a usage error then exits, as for an operator
        parser = command.create_parser("manage.py", "deadletter")
        out, err = io.StringIO(), io.StringIO()
        code = 0
        try:
            options = vars(parser.parse_args([str(argument) for argument in arguments]))
            command.execute(**options | {"stdout": out, "stderr": err, "no_color": True})
        except CommandError as error:
            code = error.returncode
            err.write(f"CommandError: {error}\n")
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Result(code, out.getvalue() + captured.out, err.getvalue() + captured.err)

    return run


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def say(text: str) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(f"{text}\n"))

    return say
