"""
Errors for readers without the payload permission: the class and the place, not the text.

The text of an exception often quotes the payload ("no such card: 4111…"). Its class and its frames
are code of the site, and enough to find the bug.
"""

from __future__ import annotations

import builtins
import re
import sys

from django.http import HttpRequest
from django.utils.translation import gettext

#: An error is stored as "package.module.Class: text", or without the text.
_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?=:|\s*$)")


def may_read_errors(request: HttpRequest) -> bool:
    return request.user.has_perm("deadletter.view_payload")


def exception_of(error: str | None, traceback: str = "") -> str:
    """
    Return the class that an error text begins with, or "" where the word may be data.

    A word before a colon may be data ("alice: no such customer"): it is taken for a class only if
    such an exception is loaded, or if the traceback names it. Nothing is imported.
    """
    found = _CLASS.match(error or "")
    if found is None:
        return ""
    name = found[1]
    named = re.search(rf"^{re.escape(name)}(:|\s*$)", traceback, re.MULTILINE)
    is_known = _is_exception(name) or (named and traceback.startswith("Traceback (most recent"))
    return name if is_known else ""


def hidden_text(error: str | None, traceback: str = "") -> str:
    """Return the substitute for the text of an error."""
    if not error:
        return ""
    return exception_of(error, traceback) or gettext(
        "You do not have permission to see error texts."
    )


def said_of(text: str, category: str | None) -> str:
    """Return the error of an instance if deadletter wrote it, else only its class."""
    # deadletter writes "poison: message mail exceeded 5 attempts" from names and numbers.
    return text if category == "poison" else hidden_text(text)


def _is_exception(name: str) -> bool:
    module, _, rest = name.rpartition(".")
    while module and module not in sys.modules:  # a nested class
        module, _, outer = module.rpartition(".")
        rest = f"{outer}.{rest}"
    found: object = sys.modules.get(module, builtins) if module else builtins
    for part in rest.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return isinstance(found, type) and issubclass(found, BaseException)
