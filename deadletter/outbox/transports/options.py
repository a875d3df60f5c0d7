"""The options that transports have in common: the address, TLS, and sizes. Never with secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")

#: Bytes of the data of one event. RabbitMQ 4 accepts as many by default, Redis 512 MB.
MAX_SIZE = 16 * 1024 * 1024
#: Of urls whose connection is encrypted.
TLS_SCHEMES = ("amqps", "rediss")


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The url of a broker in parts; its repr and `place` have no credentials."""

    scheme: str
    host: str
    port: int
    username: str | None
    password: str | None = field(repr=False)
    path: str

    @property
    def place(self) -> str:
        """Return host and port, for texts."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        return self.scheme in TLS_SCHEMES


@dataclass(frozen=True, slots=True)
class TLSOptions:
    """The option `ssl`: which certificates to trust and to show."""

    #: Certificates of the authorities to trust; None: those of the system.
    ca_file: str | None = None
    #: Our own certificate and its key, if the broker asks for one.
    cert_file: str | None = None
    key_file: str | None = None
    #: False: accept any certificate. Only for tests.
    verify: bool = True


def read_address(options: Mapping[str, Any], *, ports: Mapping[str, int]) -> BrokerAddress:
    """
    Return the option `url` in parts, with the option `password` if the url has none.

    `ports` has the schemes and their usual ports.
    """
    url = read_option(options, "url", str, "")
    parts, port = split_url(url)
    if parts is None or parts.scheme not in ports or not parts.hostname:
        schemes = " or ".join(f"{scheme}://" for scheme in ports)
        # Not the text of the error: it may quote the password.
        raise ImproperlyConfigured(
            f"url: not the address of a broker: begin it with {schemes}, then user, password, "
            "host and port; write special characters of the password as %XX"
        )
    return BrokerAddress(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or ports[parts.scheme],
        username=None if parts.username is None else unquote(parts.username),
        password=read_password(options) if parts.password is None else unquote(parts.password),
        path=unquote(parts.path[1:]),
    )


def read_password(options: Mapping[str, Any]) -> str | None:
    """Return the option `password`, which pages that show settings hide by its name."""
    return read_option(options, "password", str, "") or None


def read_option(options: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    """Return an option. Raises ImproperlyConfigured, naming it, if it has another type."""
    value: Any = options.get(name, default)
    # bool is a kind of int, and an int is as good as a float.
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ImproperlyConfigured(f"{name}: a {type(value).__name__} where {kind.__name__} is due")
    return cast("T", value)


def read_positive(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option that is a number above zero."""
    value = read_option(options, name, float, default)
    if value <= 0:
        raise ImproperlyConfigured(f"{name}: {value} is not above 0")
    return value


def read_tls(options: Mapping[str, Any]) -> TLSOptions:
    """Return the option `ssl`. Raises ImproperlyConfigured if the url is none of TLS, too."""
    given = read_option(options, "ssl", dict, {})
    refuse_unknown(given, TLSOptions.__dataclass_fields__, within="ssl")
    for name, value in given.items():
        # verify=None, of a variable that is missing, would accept any certificate.
        if not isinstance(value, bool if name == "verify" else str | None):
            raise ImproperlyConfigured(f"ssl: {name}: not a {type(value).__name__}")
    if given.get("key_file") and not given.get("cert_file"):
        raise ImproperlyConfigured("ssl: key_file without cert_file")
    if given and urlsplit(options["url"]).scheme not in TLS_SCHEMES:
        schemes = " or ".join(f"{scheme}://" for scheme in TLS_SCHEMES)
        raise ImproperlyConfigured(
            f"ssl: the connection is not encrypted: begin the url with {schemes}, or leave it out"
        )
    return TLSOptions(**given)


def refuse_unknown(given: Mapping[str, Any], known: Collection[str], *, within: str) -> None:
    """Raises ImproperlyConfigured for keys that nobody would read."""
    if unknown := sorted(str(key) for key in given if key not in known):
        raise ImproperlyConfigured(
            f"{within}: {', '.join(unknown)} is not known; there are {', '.join(known)}"
        )


def split_url(url: str) -> tuple[SplitResult | None, int | None]:
    """Split a url; None: it is none. The errors of urllib are not raised: they quote passwords."""
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:
        return None, None
