"""The command that does the same as a page, to be copied; quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..operations import PoisonFilter
from ..status import FailureReason


def command(verb: str, *ids: object, **options: Any) -> str:
    """Return a command: `("retry", 17, why="…")` is `manage.py deadletter retry 17 --why '…'`."""
    words = ["manage.py", "deadletter", verb, *(str(id) for id in ids)]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value not in (None, ""):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join(shlex.quote(word) for word in words)


def command_for(verb: str, wanted: PoisonFilter, **options: Any) -> str:
    """Return the command for all records that match; without a filter, for all records."""
    found: Mapping[str, Any] = wanted.as_dict()
    narrowed = {key: value for key, value in found.items() if key not in ("up_to", "queues")}
    if "reason" in narrowed:
        narrowed["reason"] = FailureReason.read(narrowed["reason"]).name
    text = command(verb, **narrowed, **options)
    return text if narrowed else f"{text} --all"
