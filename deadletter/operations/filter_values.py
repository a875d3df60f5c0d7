"""Values of filters: the checks that filters of records, groups and the audit share."""

from __future__ import annotations

from ..text import short_repr

#: Characters of a value. SQLite refuses a LIKE pattern of more than 50,000 bytes.
_LONGEST = 1_000


def check_text(key: str, text: str) -> None:
    """Raise ValueError, naming the key, for a text that no column can hold."""
    if len(text) > _LONGEST:
        raise ValueError(f"{key}: longer than {_LONGEST:,} characters")
    if "\x00" in text:
        raise ValueError(f"{key}: the NUL character matches nothing")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key}: a lone surrogate matches nothing") from None


def read_tag(text: str) -> tuple[str, str]:
    """Read "customer.id=1041" as key and value. Raises ValueError."""
    check_text("tag", text)
    key, sign, value = text.partition("=")
    if not (sign and key and value):
        raise ValueError(f"tag: expected key=value, got {short_repr(text)}")
    return key, value
