"""A database router for tests: messages live in the second database."""

from __future__ import annotations

from typing import Any


class ToSecond:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "second" if model._meta.app_label == "deadletter" else None
