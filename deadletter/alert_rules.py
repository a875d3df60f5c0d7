"""
Alert rules, channels and intervals: `DEADLETTER["ALERTS"]` as values.

Every error in the settings is reported here, when they are read: a broken rule that is not noticed
is worse than none. No error text quotes a secret. The module is not in `alerts` because `conf`
reads the settings with it, and `conf` is below the models.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from .durations import as_timedelta
from .text import short_repr

#: A rule for each queue separately; a rule without a queue counts all of them together.
EACH = "*"
#: The largest `above`: rows are counted up to it, every few seconds.
LARGEST = 1_000_000
#: Characters that a signing secret must have.
SECRET = 16
#: Where PagerDuty takes events, unless a channel has another address (that of the EU).
PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
SEVERITIES = ("critical", "error", "warning", "info")
_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}")
_PLAIN_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One condition to watch. The meaning of the options depends on the kind: docs/alerts.md."""

    kind: str
    queue: str = ""
    #: The count must exceed this.
    above: int = 0
    #: The time over which messages are counted.
    within: timedelta = timedelta(minutes=5)
    #: The condition must last longer than this.
    after: timedelta = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A destination of notices."""

    name: str
    kind: str
    #: Addresses; empty: the site's ADMINS.
    to: tuple[str, ...] = ()
    sender: str | None = None
    url: str = field(default="", repr=False)  # the URL of a webhook is often a secret
    #: The first one signs. While a secret is replaced, receivers may still use the others.
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    #: Seconds that one delivery may take.
    timeout: float = 10.0
    #: Of the incidents of an incident service.
    severity: str = "error"
    #: What the incidents are about; "": the host of the site.
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class AlertPolicy:
    """The value of DEADLETTER["ALERTS"]."""

    rules: tuple[Rule, ...]
    channels: tuple[Channel, ...]
    #: Time between two decisions, across all workers.
    interval: timedelta = timedelta(seconds=15)
    #: Time between two notices of one rule; the first is sent at once.
    digest: timedelta = timedelta(minutes=15)
    #: How long a condition must have ended before it counts as ended.
    recover_after: timedelta = timedelta(minutes=15)
    #: A condition that lasts unchanged is reported again after this; None: never.
    remind: timedelta | None = timedelta(hours=6)
    #: The beginning of links in notices: "https://shop.example.org".
    base_url: str = ""
    #: True if notices quote error texts.
    errors: bool = True

    def of_kind(self, kind: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.kind == kind]

    def channel(self, name: str) -> Channel | None:
        return next((channel for channel in self.channels if channel.name == name), None)


def read_alerts(value: Any) -> AlertPolicy | None:
    """Return the policy; None for None. Raises ValueError or TypeError, which names the option."""
    if value is None:
        return None
    given = _mapping(value, "")
    _known(given, ("rules", "channels", *_PLAIN), "")
    for key in ("rules", "channels"):
        if key not in given:
            raise ValueError(f"{key!r} is missing; an empty dict means none")
    options = {key: read(given[key], key) for key, read in _PLAIN.items() if key in given}
    return AlertPolicy(
        rules=tuple(_rules(given["rules"])), channels=tuple(_channels(given["channels"])), **options
    )


def _rules(value: Any) -> Iterable[Rule]:
    found: dict[tuple[str, str], Rule] = {}
    for kind, options in _mapping(value, "rules").items():
        if kind not in KINDS:
            raise ValueError(f"rules: unknown rule {short_repr(kind)} (known: {', '.join(KINDS)})")
        # False and None turn a rule off without removing it from the settings.
        if options is False or options is None:
            continue
        for one in options if isinstance(options, list | tuple) else [options]:
            rule = _rule(kind, one)
            if (kind, rule.queue) in found:
                scope = f"queue {rule.queue!r}" if rule.queue else "all queues"
                raise ValueError(f"rules: {kind}: given twice for {scope}")
            found[kind, rule.queue] = rule
    return found.values()


def _rule(kind: str, value: Any) -> Rule:
    where = f"rules: {kind}"
    needed, optional = KINDS[kind]
    if value is True:
        value = {}
    given = _mapping(value, where)
    _known(given, (*needed, *optional), where)
    for key in needed:
        if key not in given:
            raise ValueError(f"{where}: {key!r} is missing")
    return Rule(kind=kind, **{key: _OPTIONS[key](given[key], f"{where}: {key}") for key in given})


def _channels(value: Any) -> Iterable[Channel]:
    for name, options in _mapping(value, "channels").items():
        if not (str(name).isprintable() and 0 < len(str(name)) <= 100):
            raise ValueError(f"channels: {short_repr(name)} is no name")
        where = f"channels: {name}"
        given = _mapping(options, where)
        kind = given.get("type")
        if not isinstance(kind, str) or kind not in _CHANNELS:
            raise ValueError(
                f"{where}: 'type' must be one of {', '.join(_CHANNELS)}, got {short_repr(kind)}"
            )
        yield _CHANNELS[kind](name, given, where)


def _email(name: str, given: Mapping[str, Any], where: str) -> Channel:
    _known(given, ("type", "to", "from", "timeout"), where)
    to = given.get("to", ())
    if not isinstance(to, list | tuple) or ("to" in given and not to):
        raise TypeError(f"{where}: 'to' must be a list of addresses, got {short_repr(to)}")
    for address in to:
        _address(address, f"{where}: to")
    if "from" in given:
        _address(given["from"], f"{where}: from")
    return Channel(
        name=name,
        kind="email",
        to=tuple(to),
        sender=given.get("from"),
        timeout=_timeout(given.get("timeout", 30), where),
    )


def _address(value: Any, where: str) -> None:
    try:
        validate_email(value)
    except ValidationError:
        raise ValueError(f"{where}: {short_repr(value)} is not an e-mail address") from None


def _webhook(name: str, given: Mapping[str, Any], where: str) -> Channel:
    _known(given, ("type", "url", "secret", "timeout", "allow_http"), where)
    for key in ("url", "secret"):
        if key not in given:
            raise ValueError(f"{where}: {key!r} is missing")
    return Channel(
        name=name,
        kind="webhook",
        url=_url(given["url"], where, plain=_flag(given.get("allow_http", False), where)),
        secrets=_secrets(given["secret"], where),
        timeout=_timeout(given.get("timeout", 10), where),
    )


def _chat(name: str, given: Mapping[str, Any], where: str) -> Channel:
    _known(given, ("type", "url", "timeout", "allow_http"), where)
    if "url" not in given:
        raise ValueError(f"{where}: 'url' is missing")
    return Channel(
        name=name,
        kind=given["type"],
        url=_url(given["url"], where, plain=_flag(given.get("allow_http", False), where)),
        timeout=_timeout(given.get("timeout", 10), where),
    )


def _pagerduty(name: str, given: Mapping[str, Any], where: str) -> Channel:
    _known(given, ("type", "key", "url", "severity", "source", "timeout", "allow_http"), where)
    if "key" not in given:
        raise ValueError(f"{where}: 'key' is missing")
    key, severity, source = given["key"], given.get("severity", "error"), given.get("source", "")
    # The key is a secret: it is not quoted.
    if not isinstance(key, str) or not _ROUTING_KEY.fullmatch(key):
        raise ValueError(
            f"{where}: 'key' must be the integration key of a service: 32 letters and digits"
        )
    if not isinstance(severity, str) or severity not in SEVERITIES:
        raise ValueError(
            f"{where}: 'severity' must be one of {', '.join(SEVERITIES)}, got "
            f"{short_repr(severity)}"
        )
    if not isinstance(source, str) or not source.isprintable() or len(source) > 200:
        raise ValueError(f"{where}: 'source' must be one line of at most 200 characters")
    url = given.get("url", PAGERDUTY)
    return Channel(
        name=name,
        kind="pagerduty",
        url=_url(url, where, plain=_flag(given.get("allow_http", False), where)),
        secrets=(key.encode(),),
        timeout=_timeout(given.get("timeout", 30), where),
        severity=severity,
        source=source,
    )


def _timeout(value: Any, where: str) -> float:
    seconds = as_timedelta(value, field=f"{where}: timeout").total_seconds()
    if not 0 < seconds <= 60:
        raise ValueError(f"{where}: 'timeout' must be more than 0 and at most 60 seconds")
    return seconds


def _url(value: Any, where: str, *, plain: bool) -> str:
    """Accept https; http only to localhost or with allow_http. Errors do not quote the URL."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        host = parts.hostname if parts else None
        _port = parts.port if parts else None
    except ValueError:
        parts = host = None
    if parts is None or not host or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{where}: 'url' is not an address such as https://example.org/alerts")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{where}: 'url' must not contain a user name or password")
    if parts.scheme == "https" or (parts.scheme == "http" and (plain or host in _PLAIN_HOSTS)):
        return str(value)
    raise ValueError(
        f"{where}: 'url' must be https, got {short_repr(parts.scheme)} "
        "(http is accepted for localhost, or with 'allow_http': True)"
    )


def _secrets(value: Any, where: str) -> tuple[bytes, ...]:
    given = value if isinstance(value, list | tuple) else [value]
    if not given:
        raise ValueError(f"{where}: 'secret' is empty")
    return tuple(_secret(secret, where) for secret in given)


def _secret(value: Any, where: str) -> bytes:
    if not isinstance(value, str) or len(value) < SECRET:
        raise ValueError(
            f"{where}: 'secret' must be text of at least {SECRET} characters; make one with "
            'python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    if not value.startswith("whsec_"):
        return value.encode()
    try:
        return base64.b64decode(value.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError(f"{where}: 'secret' begins with whsec_ but is not base64") from None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        place = f"{where}: " if where else ""
        # The value is not quoted: it may be a secret in the wrong place.
        raise TypeError(f"{place}expected a dict, got {type(value).__name__}")
    return value


def _known(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            place = f"{where}: " if where else ""
            names = ", ".join(known) or "none"
            raise ValueError(f"{place}unknown option {short_repr(key)} (known: {names})")


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where}: expected True or False, got {short_repr(value)}")
    return value


def _duration(value: Any, where: str) -> timedelta:
    found = as_timedelta(value, field=where)
    if found < timedelta(seconds=1):
        raise ValueError(f"{where}: must be at least a second")
    return found


def _duration_or_none(value: Any, where: str) -> timedelta | None:
    return None if value is None else _duration(value, where)


def _number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"{where}: expected 0 to {LARGEST:,}, got {short_repr(value)}")
    return value


def _queue(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError(
            f"{where}: expected the name of a queue, or {EACH!r}, got {short_repr(value)}"
        )
    return value


def _base_url(value: Any, where: str) -> str:
    parts = urlsplit(value) if isinstance(value, str) and value.isprintable() else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{where}: expected an address such as https://example.org")
    if parts.query or parts.fragment or " " in value:
        raise ValueError(f"{where}: must not contain ? or #, because paths are appended to it")
    return str(value).rstrip("/")


#: Required and optional options of each kind of rule.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "new_group": ((), ("queue",)),
    "regressed_group": ((), ("queue",)),
    "poison_rate": (("above",), ("within", "queue")),
    "poison_depth": (("above",), ("queue",)),
    "oldest_age": (("after",), ("queue",)),
    "halted_stream": ((), ("queue",)),
    "worker_lost": ((), ("after",)),
    "breaker_opened": ((), ()),
    "unserved_queue": ((), ("after", "queue")),
    "stuck_instance": ((), ()),
    "outbox_age": (("after",), ()),
    "broker_unavailable": ((), ("after",)),
    "schedule_failed": ((), ()),
    "schedule_overdue": ((), ("after",)),
}
_OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "queue": _queue,
    "above": _number,
    "within": _duration,
    "after": _duration,
}
_CHANNELS: dict[str, Callable[[str, Mapping[str, Any], str], Channel]] = {
    "email": _email,
    "webhook": _webhook,
    "slack": _chat,
    "teams": _chat,
    "pagerduty": _pagerduty,
}
_PLAIN: dict[str, Callable[[Any, str], Any]] = {
    "interval": _duration,
    "digest": _duration,
    "recover_after": _duration,
    "remind": _duration_or_none,
    "base_url": _base_url,
    "errors": _flag,
}
