"""
Links to other systems: `DEADLETTER["LINKS"]` as values.

A template is an address with placeholders behind its host. It is checked when the settings are
read, so that no page has a link that leads elsewhere than the settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

from .text import short_repr

#: What a template may contain, in braces.
PLACEHOLDERS = ("message_id", "trace_id", "name", "queue", "fingerprint", "since", "until")
#: Characters of a label and of a template; the number of links.
LABEL_LIMIT, URL_LIMIT, MOST = 60, 2_000, 20


@dataclass(frozen=True, kw_only=True)
class LinkTemplate:
    """A labelled link of which parts are filled in."""

    #: Text, or text that is translated when it is shown.
    label: Any
    url: str
    placeholders: frozenset[str]

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the address with quoted values; "" if one of them is not known."""
        if any(not values.get(name) for name in self.placeholders):
            return ""
        quoted = {
            name: quote(values[name], safe="", errors="replace") for name in self.placeholders
        }
        return self.url.format_map(quoted)


def read_links(value: Any) -> tuple[LinkTemplate, ...]:
    """Return the templates of a dict {label: URL}, or of a list of such pairs."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or len(pairs) > MOST:
        raise TypeError(f"expected a dict of at most {MOST} labels and URLs")
    found = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"expected pairs of a label and a URL, got {short_repr(pair)}")
        label, url = pair
        if not (str(label).isprintable() and 0 < len(str(label)) <= LABEL_LIMIT):
            raise ValueError(f"{short_repr(label)} is no label of 1 to {LABEL_LIMIT} characters")
        found.append(_read(label, url, f"link {str(label)!r}"))
    return tuple(found)


def _read(label: Any, url: Any, where: str) -> LinkTemplate:
    if not isinstance(url, str) or not 0 < len(url) <= URL_LIMIT:
        raise TypeError(f"{where}: expected a URL of at most {URL_LIMIT} characters")
    try:
        parsed = list(Formatter().parse(url))
    except ValueError:
        raise ValueError(f"{where}: braces do not match; write {{{{ for a brace") from None
    names = set()
    for _text, name, form, conversion in parsed:
        if name is None:
            continue
        if name not in PLACEHOLDERS or form or conversion:
            known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
            raise ValueError(f"{where}: unknown placeholder {short_repr(name)} (known: {known})")
        names.add(name)
    _check_address(parsed[0][0] or "", url, where)
    return LinkTemplate(label=label, url=url, placeholders=frozenset(names))


def _check_address(start: str, url: str, where: str) -> None:
    """Accept http and https; the host is before the first placeholder, and ends before it."""
    try:
        parts = urlsplit(start)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not url.isprintable() or not url.isascii() or " " in url:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise ValueError(
            f"{where}: expected an address such as https://logs.example.org/?q={{name}}"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{where}: must not contain a user name or password")
    has_end = bool(parts.path or parts.query or parts.fragment)
    if len(start) < len(url) and not has_end:
        raise ValueError(
            f"{where}: the host must be complete, with a / before the first placeholder"
        )
