"""The release of the application that this process runs."""

from __future__ import annotations

from .conf import Settings, get_settings
from .logs import crash
from .text import storable_text

#: Characters of a release, as the columns have them.
_LIMIT = 100


def current_release() -> str:
    """Return DEADLETTER["RELEASE"], or ""; a callable is called once. Never raises for it."""
    global _known
    settings = get_settings()
    if _known is None or _known[0] is not settings:
        _known = settings, _read(settings)
    return _known[1]


def cut_release(value: object) -> str:
    """Return a release as it is stored."""
    return "" if value is None else storable_text(value, limit=4 * _LIMIT).strip()[:_LIMIT]


#: The settings that were read last, and their release.
_known: tuple[Settings, str] | None = None


def _read(settings: Settings) -> str:
    value: object = settings.release
    if callable(value):
        try:
            value = value()
        except Exception as error:  # noqa: BLE001 - application code; logged
            crash("release_failed", "DEADLETTER['RELEASE'] raised", error)
            return ""
    return cut_release(value)
