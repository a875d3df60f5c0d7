"""A small, named change of the source that a test must notice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Database = Literal["sqlite", "postgresql"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Edit:
    """Replace a text: everywhere inside one named statement of a .sql file, else where it is."""

    path: str
    before: str
    after: str
    statement: str | None = None

    def apply(self, root: Path) -> None:
        file = root / self.path
        file.write_text(self.changed(file.read_text()))

    def changed(self, text: str) -> str:
        """Return the changed text. Raises ValueError when the source no longer has the text."""
        start, end = self._place(text)
        place = text[start:end]
        found = place.count(self.before)
        if not found or (self.statement is None and found > 1):
            raise ValueError(f"{self.path}: {self.before!r} is there {found} times")
        return text[:start] + place.replace(self.before, self.after) + text[end:]

    def _place(self, text: str) -> tuple[int, int]:
        if self.statement is None:
            return 0, len(text)
        header = re.search(rf"^-- {self.statement} --$", text, re.MULTILINE)
        if header is None:
            raise ValueError(f"{self.path}: there is no statement {self.statement}")
        following = re.search(r"^-- \w+ --$", text[header.end() :], re.MULTILINE)
        return header.end(), header.end() + following.start() if following else len(text)


@dataclass(frozen=True)
class Mutation:
    """`tests` is the smallest set that must turn red, as arguments of pytest."""

    name: str
    on: Database
    edits: Sequence[Edit]
    tests: Sequence[str]

    def apply(self, root: Path) -> None:
        for edit in self.edits:
            edit.apply(root)


def sql(on: Database, statement: str, before: str, after: str) -> Edit:
    return Edit(_file_of(on, statement), before, after, statement)


@cache
def _file_of(on: Database, statement: str) -> str:
    folder = ROOT / "deadletter/sql"
    header = re.compile(rf"^-- {statement} --$", re.MULTILINE)
    for file in (*sorted((folder / on).glob("*.sql")), folder / "shared.sql"):
        if header.search(file.read_text()):
            return file.relative_to(ROOT).as_posix()
    raise ValueError(f"there is no statement {statement} for {on}")


def python(path: str, before: str, after: str) -> Edit:
    return Edit(f"deadletter/{path}", before, after)
