"""The settings dict `DEADLETTER`, read when it is used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from .alert_rules import AlertPolicy, read_alerts
from .backoff import BreakerPolicy, UnregisteredBackoff
from .durations import as_timedelta
from .outbox.brokers import Broker, read_brokers, read_kept
from .payload import SIZE_LIMIT
from .status import FailureReason
from .text import short_repr

#: Names of queues and messages: no white space, quotes, control characters, or SQL.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,199}")

Classifier = Callable[[BaseException], FailureReason | int | None]
Access = Callable[[Any], bool]
#: Gets the exception and the message; returns what makes failures the same, or None.
Fingerprinter = Callable[[BaseException, Any], "str | Sequence[str] | None"]
Release = str | Callable[[], str | None]

#: Variables of the environment that name the release of the application; the first that is set.
RELEASE_VARIABLES = (
    "RELEASE",
    "RELEASE_VERSION",
    "SENTRY_RELEASE",
    "GIT_COMMIT",
    "SOURCE_VERSION",
    "HEROKU_SLUG_COMMIT",
    "K_REVISION",
    "RENDER_GIT_COMMIT",
    "VERCEL_GIT_COMMIT_SHA",
)

#: Characters of METRICS_TOKEN; a shorter token could be guessed.
SHORTEST_TOKEN = 16


def release_of_environment() -> str:
    """Return the release that the platform names, or ""."""
    given = (os.environ.get(name, "").strip() for name in RELEASE_VARIABLES)
    return next((text for text in given if text), "")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`DEADLETTER` with its defaults. The keys of the dict are these names in capitals."""

    #: Queues created by `migrate` when missing: {name: {field of Queue: value}}.
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Reasons that quarantine a message at its first failure.
    permanent_reasons: frozenset[FailureReason] = frozenset()
    #: Called with the exception; returns a FailureReason, or None to leave it to the defaults.
    classify: Classifier | None = None
    #: Bytes of JSON a payload may have.
    payload_limit: int = SIZE_LIMIT
    #: Messages of one stream in one claim: a busy stream must not starve the others.
    stream_cap: int = 25
    #: How long an attempt may take if its handler sets no timeout; None: no limit.
    handler_timeout: timedelta | None = timedelta(hours=1)
    #: Circuit breaker of handlers that set none: {"failures", "window", "cooldown"} or None.
    breaker: BreakerPolicy | None = None
    #: Words in keys whose values are hidden, or a callable that redacts a payload.
    redact: tuple[str, ...] | Callable[[Any], Any] = (
        "password",
        "token",
        "secret",
        "authorization",
        "card",
    )
    #: First and longest delay of a message whose name has no handler.
    unregistered_base: timedelta = timedelta(seconds=1)
    unregistered_cap: timedelta = timedelta(seconds=60)
    #: Called with a request for metrics; returns True to allow it. None: the token, or staff.
    metrics_access: Access | None = None
    #: What a scraper sends as `Authorization: Bearer …`; empty: no token is accepted.
    metrics_token: str = ""
    #: Rules of alerts and channels of notices; None: no alerts.
    alerts: AlertPolicy | None = None
    #: Whether events are counted, and how long the counters are kept.
    counts: bool = True
    counts_kept: timedelta = timedelta(days=400)
    #: How long ended instances and their timelines are kept; None: for ever.
    instances_kept: timedelta | None = None
    #: How long an audit entry keeps the payloads of an edit, before and after; None: for ever.
    audit_payloads_kept: timedelta | None = timedelta(days=90)
    #: How long results of tasks are kept; 0: not at all, None: for ever.
    results_kept: timedelta | None = timedelta(days=7)
    #: The brokers that `publish` may name.
    brokers: Mapping[str, Broker] = field(default_factory=dict)
    #: How long the inbox remembers handled messages; None: for ever.
    inbox_kept: timedelta | None = timedelta(days=7)
    #: How long messages are kept that a broker has confirmed; 0: not at all, None: for ever.
    outbox_kept: timedelta | None = timedelta(0)
    #: Schedules created by `migrate` when missing: {name: {option: value}}.
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: The release of the application, or a callable that returns it; see application_release.py.
    release: Release = release_of_environment
    #: Called with an exception and its message; returns what makes failures one group, or None.
    fingerprint: Fingerprinter | None = None
    #: The groups that fingerprints of the application may make for one message name.
    groups_limit: int = 100
    #: How long a failure group is kept after its last failure; None: for ever.
    groups_kept: timedelta | None = timedelta(days=365)
    #: How long tags of messages and of groups are kept; None: for ever.
    tags_kept: timedelta | None = timedelta(days=30)

    @property
    def unregistered(self) -> UnregisteredBackoff:
        return UnregisteredBackoff(base=self.unregistered_base, cap=self.unregistered_cap)


def get_settings() -> Settings:
    """
    Return the settings. Raises ValueError for what `manage.py check` reports as an error.

    Each dict is read once, because every message asks: to change a setting, assign another dict.
    """
    global _known
    given = _given()
    if _known is None or _known[0] is not given:
        values, problems = _read()
        if problems:
            raise ValueError(f"settings.DEADLETTER is invalid: {problems[0].text}")
        _known = given, Settings(**values)
    return _known[1]


#: The dict that was read last, and its settings.
_known: tuple[object, Settings] | None = None
_NOTHING: Mapping[str, Any] = {}


def _given() -> Any:
    return getattr(django_settings, "DEADLETTER", _NOTHING)


@dataclass(frozen=True)
class SettingsProblem:
    """One error in the dict, for the system checks."""

    kind: str
    text: str
    hint: str


def problems() -> list[SettingsProblem]:
    return _read()[1]


def _read() -> tuple[dict[str, Any], list[SettingsProblem]]:
    given = _given()
    if not isinstance(given, Mapping):
        return {}, [SettingsProblem("type", "DEADLETTER must be a dict", "DEADLETTER = {…}")]
    values: dict[str, Any] = {}
    found: list[SettingsProblem] = []
    for key, value in given.items():
        reader = _READERS.get(key)
        if reader is None:
            found.append(
                SettingsProblem(
                    "unknown", f"unknown key {key!r}", f"known keys: {', '.join(_READERS)}"
                )
            )
            continue
        try:
            values[key.lower()] = reader(value)
        except (ValueError, TypeError, ImportError) as error:
            found.append(SettingsProblem("value", f"{key}: {error}", _HINTS[key]))
    return values, found


def _queues(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict of queue names")
    for name, policy in value.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a queue name (letters, digits and _.:/@+-)")
        if not isinstance(policy, Mapping):
            raise TypeError(f"queue {name!r}: expected a dict of fields, got {policy!r}")
    return value


def _schedules(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict of schedule names")
    for name, options in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise ValueError(f"{short_repr(name)} is not a name of 1 to 200 characters")
        if not isinstance(options, Mapping):
            raise TypeError(f"schedule {name!r}: expected a dict, got {short_repr(options)}")
    return value


def _reasons(value: Any) -> frozenset[FailureReason]:
    return frozenset(FailureReason(reason) for reason in value)


def _classifier(value: Any) -> Classifier | None:
    if isinstance(value, str):
        value = import_string(value)
    if value is not None and not callable(value):
        raise TypeError(f"expected a callable or its dotted path, got {value!r}")
    return value  # type: ignore[no-any-return]


def _redact(value: Any) -> Any:
    if isinstance(value, str):
        value = import_string(value)
    if callable(value):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise TypeError(f"expected a list of words or a callable, got {value!r}")
    return tuple(value)


def _timeout(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="HANDLER_TIMEOUT")


def _kept(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="INSTANCES_KEPT")


def read_results_kept(value: Any) -> timedelta | None:
    """Return how long a result is kept: "never" is 0, None is for ever."""
    if value == "never":
        return timedelta(0)
    return None if value is None else as_timedelta(value, field="how long results are kept")


def _inbox_kept(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="INBOX_KEPT")


def _outbox_kept(value: Any) -> timedelta | None:
    return read_kept("OUTBOX_KEPT", value)


def _release(value: Any) -> Release:
    if value is None:
        return ""
    if not isinstance(value, str) and not callable(value):
        raise TypeError(f"expected text or a callable, got {short_repr(value)}")
    return value  # type: ignore[no-any-return]


def _groups_kept(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="GROUPS_KEPT")


def _tags_kept(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="TAGS_KEPT")


def _payloads_kept(value: Any) -> timedelta | None:
    return None if value is None else as_timedelta(value, field="AUDIT_PAYLOADS_KEPT")


def _breaker(value: Any) -> BreakerPolicy | None:
    if value is None or isinstance(value, BreakerPolicy):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a dict or None, got {value!r}")
    return BreakerPolicy(**value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected True or False, got {value!r}")
    return value


def _access(value: Any) -> Access | None:
    if isinstance(value, str):
        value = import_string(value)
    if value is not None and not callable(value):
        raise TypeError(f"expected a callable or its dotted path, got {value!r}")
    return value  # type: ignore[no-any-return]


def _token(value: Any) -> str:
    # Never quoted in the error: even a refused token may be a secret.
    if not isinstance(value, str) or (value and len(value) < SHORTEST_TOKEN):
        raise ValueError(f"expected a text of at least {SHORTEST_TOKEN} characters")
    return value


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"expected a positive whole number, got {value!r}")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "QUEUES": _queues,
    "PERMANENT_REASONS": _reasons,
    "CLASSIFY": _classifier,
    "PAYLOAD_LIMIT": _positive,
    "STREAM_CAP": _positive,
    "REDACT": _redact,
    "HANDLER_TIMEOUT": _timeout,
    "BREAKER": _breaker,
    "UNREGISTERED_BASE": as_timedelta,
    "UNREGISTERED_CAP": as_timedelta,
    "METRICS_ACCESS": _access,
    "METRICS_TOKEN": _token,
    "COUNTS": _truth,
    "COUNTS_KEPT": as_timedelta,
    "INSTANCES_KEPT": _kept,
    "AUDIT_PAYLOADS_KEPT": _payloads_kept,
    "RESULTS_KEPT": read_results_kept,
    "BROKERS": read_brokers,
    "INBOX_KEPT": _inbox_kept,
    "OUTBOX_KEPT": _outbox_kept,
    "ALERTS": read_alerts,
    "SCHEDULES": _schedules,
    "RELEASE": _release,
    "FINGERPRINT": _classifier,
    "GROUPS_LIMIT": _positive,
    "GROUPS_KEPT": _groups_kept,
    "TAGS_KEPT": _tags_kept,
}
_HINTS = {
    "QUEUES": 'for example {"mail": {"max_attempts": 3, "backoff_base": 10}}',
    "PERMANENT_REASONS": "for example [FailureReason.VALIDATION_FAILURE]",
    "CLASSIFY": 'for example "shop.failures.classify"',
    "PAYLOAD_LIMIT": "bytes, for example 262144",
    "STREAM_CAP": "messages of one stream per claim, for example 25",
    "REDACT": 'for example ["password", "iban"] or "shop.privacy.redact"',
    "HANDLER_TIMEOUT": 'for example "10m", seconds or a timedelta; None for no limit',
    "BREAKER": 'for example {"failures": 10, "window": 60, "cooldown": 30}',
    "UNREGISTERED_BASE": 'for example "30s", seconds or a timedelta',
    "UNREGISTERED_CAP": 'for example "30s", seconds or a timedelta',
    "METRICS_ACCESS": 'for example "shop.access.may_scrape"',
    "METRICS_TOKEN": 'for example env("METRICS_TOKEN"), made with `openssl rand -hex 32`',
    "COUNTS": "True or False",
    "COUNTS_KEPT": 'for example "400d" or timedelta(days=400)',
    "INSTANCES_KEPT": 'for example "90d" or timedelta(days=90); None to keep all',
    "AUDIT_PAYLOADS_KEPT": 'for example "90d" or timedelta(days=90); None to keep all',
    "RESULTS_KEPT": 'for example "7d" or timedelta(days=7); "never" to keep none, None to keep all',
    "BROKERS": 'for example {"default": {"url": env("BROKER_URL")}}; see docs/outbox.md',
    "INBOX_KEPT": 'for example "7d" or timedelta(days=7); None to keep all',
    "OUTBOX_KEPT": 'for example "3d" or timedelta(days=3); "never" to keep none, None to keep all',
    "ALERTS": 'for example {"rules": {"new_group": True}, "channels": {"ops": {"type": "email"}}}; '
    "see docs/alerts.md",
    "SCHEDULES": 'for example {"report": {"cron": "0 3 * * *", "message": "shop.report"}}; '
    "see docs/schedules.md",
    "RELEASE": 'for example "2.7.0" or a function that returns it; None for no release',
    "FINGERPRINT": 'for example "shop.failures.fingerprint"',
    "GROUPS_LIMIT": "groups of one message name, for example 100",
    "GROUPS_KEPT": 'for example "365d" or timedelta(days=365); None to keep all',
    "TAGS_KEPT": 'for example "30d" or timedelta(days=30); None to keep all',
}


def _names() -> Iterator[str]:
    return (item.name.upper() for item in fields(Settings))


assert set(_READERS) == set(_names()) == set(_HINTS)  # noqa: S101 - one list, three columns
