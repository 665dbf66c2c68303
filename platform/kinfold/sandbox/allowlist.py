"""Which hosts a sandbox may reach, in an operator's words; the proxy of `kinfold.sandbox.egress` asks nothing else."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer, model_validator

from kinfold.errors import ConfigError

DEFAULT_PORTS = frozenset({80, 443})
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*\Z")
_FRAMING = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect"}
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parsed line of `hosts`."""

    host: str
    """Lower case, without the trailing dot; of a wildcard what follows the `*.`."""
    wildcard: bool
    ports: frozenset[int]

    def covers(self, host: str) -> bool:
        """Whether this host is meant. `*.a.b` means all that lies beneath `a.b`, and not `a.b` itself."""
        return host.endswith("." + self.host) if self.wildcard else host == self.host


class Allowlist(BaseModel):
    """The network of a sandbox that may reach these hosts and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[str, ...] = Field(min_length=1)
    """`name` (ports 80 and 443), `name:port`, `*.suffix`, `*.suffix:port`."""
    inject: dict[str, dict[str, SecretStr]] = Field(default_factory=dict)
    """By host: headers that the proxy adds. The sandbox calls `http://host/…`, the proxy speaks TLS to the host.

    The values stay in this process: records, events and the engine's configuration have only the headers' names.
    """
    private: tuple[str, ...] = ()
    """`address:port` that may be reached although it is loopback or private: the exception, one by one."""
    pins: dict[str, str] = Field(default_factory=dict)
    """By host: the address that it has, in place of what a name server says."""
    ca_file: str | None = None
    """Certificates that are trusted for hosts in `inject`; None: the machine's."""
    upload_bytes: int = Field(default=1024**3, ge=0)
    """What may leave, in all, while this process holds the sandbox."""
    download_bytes: int = Field(default=16 * 1024**3, ge=0)
    """What may come in, in all."""
    connections: int = Field(default=64, ge=1, le=256)
    """At once; further ones wait."""
    attempts: int = Field(default=10_000, ge=1)
    """In all; each makes an event, so they are counted too."""

    @model_validator(mode="after")
    def _check(self) -> Allowlist:
        entries = self.entries
        _ = self.private_ends
        for host, address in self.pins.items():
            if not any(entry.covers(host) for entry in entries):
                raise ValueError(f"pins: {host!r} is not in `hosts`")
            ipaddress.ip_address(address)
        for host, headers in self.inject.items():
            if not any(entry.covers(host) for entry in entries):
                raise ValueError(f"inject: {host!r} is not in `hosts`: name it there, in lower case and without a port")
            _check_headers(host, headers)
        return self

    @field_serializer("inject")
    def _names_only(self, inject: Mapping[str, Mapping[str, SecretStr]]) -> dict[str, dict[str, str]]:
        return {host: dict.fromkeys(headers, "") for host, headers in inject.items()}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """`hosts`, parsed."""
        return tuple(_entry(text) for text in self.hosts)

    @cached_property
    def private_ends(self) -> frozenset[tuple[Address, int]]:
        """`private`, parsed."""
        return frozenset(_private(text) for text in self.private)

    def permits(self, host: str, port: int) -> Literal["yes", "host", "port"]:
        """`yes`, or what is wrong."""
        covering = [entry for entry in self.entries if entry.covers(host)]
        if not covering:
            return "host"
        return "yes" if any(port in entry.ports for entry in covering) else "port"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of `inject`."""
        return tuple(value.get_secret_value() for headers in self.inject.values() for value in headers.values())


def allowlist(hosts: Iterable[str], *, inject: Mapping[str, Mapping[str, str]] | None = None, **more: Any) -> Allowlist:
    """An `Allowlist` of these hosts; `more` are its other fields. Raises `ConfigError` for what it cannot mean."""
    try:
        return Allowlist(hosts=tuple(hosts), inject=inject or {}, **more)  # type: ignore[arg-type]  # values become SecretStr
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"network allowlist: {place + ': ' if place else ''}{reason}",
            hint="hosts are NAME[:PORT] or *.SUFFIX[:PORT]",
        ) from None


def parse_network(text: str) -> Literal["none", "open"] | Allowlist:
    """What `--network` says: `none`, `open`, or `allow:HOST[:PORT],…`. Raises `ConfigError`."""
    if text == "none":
        return "none"
    if text == "open":
        return "open"
    kind, separator, hosts = text.partition(":")
    if kind != "allow" or not separator:
        raise ConfigError(f"network {text!r} is not known", hint="none, open, or allow:HOST[:PORT],HOST…")
    return allowlist(part.strip() for part in hosts.split(","))


def host_name(text: str) -> str:
    """A host as it is compared: lower case, one trailing dot taken off, an address in its one spelling.

    Raises `ValueError` for everything else, spellings of addresses that only some resolvers understand among it.
    """
    name = text.lower().removesuffix(".")
    if name.startswith("[") or ":" in name:
        if "%" in name:
            raise ValueError("an address with a zone")
        return ipaddress.IPv6Address(name.removeprefix("[").removesuffix("]")).compressed
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.match(label) for label in labels):
        raise ValueError(f"{text!r} is not a host name")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return str(ipaddress.IPv4Address(name))
    return name


def _entry(text: str) -> Entry:
    host, port = _split_port(text)
    wildcard = host.startswith("*.")
    if not text.isascii():
        raise ValueError(f"hosts: {text!r} is not ASCII: write it in punycode (xn--…)")
    name = host_name(host.removeprefix("*."))
    if wildcard and ("." not in name or is_address(name)):
        raise ValueError(f"hosts: {text!r} is too wide: a wildcard needs two labels, as in *.example.org")
    return Entry(host=name, wildcard=wildcard, ports=DEFAULT_PORTS if port is None else frozenset({port}))


def _private(text: str) -> tuple[Address, int]:
    host, port = _split_port(text)
    if port is None:
        raise ValueError(f"private: {text!r} is not ADDRESS:PORT")
    return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), port


def _split_port(text: str) -> tuple[str, int | None]:
    host, colon, digits = text.rpartition(":")
    if not colon or digits.endswith("]"):
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 0 < int(digits) < 65536:
        raise ValueError(f"{text!r}: the port is a number from 1 to 65535")
    return host, int(digits)


def is_address(host: str) -> bool:
    """Whether a `host_name` is an address."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def _check_headers(host: str, headers: Mapping[str, SecretStr]) -> None:
    for name, value in headers.items():
        if not _HEADER.match(name) or name.lower() in _FRAMING or name.lower().startswith("proxy-"):
            raise ValueError(f"inject: {name!r} for {host} is not a header that can be added")
        if not _VALUE.match(value.get_secret_value()):
            raise ValueError(f"inject: the value of {name!r} for {host} has characters that no header may have")
