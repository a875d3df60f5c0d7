"""
The mail settings of the installed Django: MAILERS since 6.1, the EMAIL_ settings before.

Django 6.1 warns of the old ones and refuses both at once, so tests ask here for the right ones.
"""

from __future__ import annotations

from typing import Any

import django

HAS_MAILERS = django.VERSION >= (6, 1)
LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
SMTP = "django.core.mail.backends.smtp.EmailBackend"


def smtp_settings(host: str, port: int, timeout: float | None = None) -> dict[str, Any]:
    """Return the settings that send every mail to this server."""
    return (mailers if HAS_MAILERS else email_settings)(host, port, timeout)


def mailers(host: str, port: int, timeout: float | None = None) -> dict[str, Any]:
    options = {"host": host, "port": port, "timeout": timeout}
    return {"MAILERS": {"default": {"BACKEND": SMTP, "OPTIONS": options}}}


def email_settings(host: str, port: int, timeout: float | None = None) -> dict[str, Any]:
    return {
        "EMAIL_BACKEND": SMTP,
        "EMAIL_HOST": host,
        "EMAIL_PORT": port,
        "EMAIL_TIMEOUT": timeout,
    }
