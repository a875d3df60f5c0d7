"""
What a page shows of an error to a reader without the payload permission: class and place.

The text of an exception often repeats what a payload holds ("no such card: 4111…"). Its class and
the frames it passed are code of the site, and enough to know whose bug it is.
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
    Return the class that an error text begins with, or "" where it cannot be told from data.

    A word before a colon may be anything ("alice: no such customer"): it counts as a class only if
    it is one here, or if the traceback names it. Nothing is imported.
    """
    found = _CLASS.match(error or "")
    if found is None:
        return ""
    name = found[1]
    named = re.search(rf"^{re.escape(name)}(:|\s*$)", traceback, re.MULTILINE)
    is_known = _is_exception(name) or (named and traceback.startswith("Traceback (most recent"))
    return name if is_known else ""


def hidden_text(error: str | None, traceback: str = "") -> str:
    """Return what stands where the text of an error would."""
    if not error:
        return ""
    return exception_of(error, traceback) or gettext("You may not see texts of errors.")


def said_of(text: str, category: str | None) -> str:
    """Return what may be shown of the text of an instance's error: ours, or the class of theirs."""
    # "poison: message mail exceeded 5 attempts" is written by deadletter, from names and numbers.
    return text if category == "poison" else hidden_text(text)


def _is_exception(name: str) -> bool:
    module, _, rest = name.rpartition(".")
    while module and module not in sys.modules:  # a class may be inside another
        module, _, outer = module.rpartition(".")
        rest = f"{outer}.{rest}"
    found: object = sys.modules.get(module, builtins) if module else builtins
    for part in rest.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return isinstance(found, type) and issubclass(found, BaseException)
