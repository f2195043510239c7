"""Addresses of a federation: loopback is always allowed; any other address needs TLS and a token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from shoal.core.errors import BadInput

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Address(NamedTuple):
    """A host and a port; port 0 asks the system for a free one."""

    host: str
    port: int


def address_of(text: str) -> Address:
    """Parse `127.0.0.1:7777`, `[::1]:7777` or `localhost:0`."""
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d{1,5})", text)
    if found is None or int(found["port"]) > 65535:
        raise BadInput(f"address {text!r}; expected HOST:PORT, for example 127.0.0.1:7777")
    return Address(found["six"] or found["host"], int(found["port"]))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_of(address: Address, port: int, *, tls: bool) -> str:
    """The URL of a listener: of one that is bound to every address of the machine, with the machine's name."""
    try:
        everywhere = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        everywhere = False
    host = socket.gethostname() if everywhere else address.host
    return f"{'wss' if tls else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}"


def check_bind(host: str, *, tls: bool, token: bool) -> None:
    """Raise `BadInput` for a listener that others could reach without TLS and a token."""
    if not is_loopback(host) and not (tls and token):
        missing = " and ".join(
            name for name, there in (("TLS (--cert and --key)", tls), ("a token", token)) if not there
        )
        raise BadInput(f"listening on {host} needs {missing}; without them, only loopback (127.0.0.1) is allowed")


def check_url(url: str) -> str:
    """Check the URL of a parent or of a listening child; `BadInput` if it would send a token unencrypted."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"address {url!r}: {error}") from None
    if parts.scheme not in ("ws", "wss") or not parts.hostname or port is None:
        raise BadInput(f"address {url!r}; expected ws://HOST:PORT or wss://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput(
            f"address {parts.scheme}://{parts.hostname}:{port} has more than host and port; pass a token with --token-file"
        )
    if parts.scheme == "ws" and not is_loopback(parts.hostname):
        raise BadInput(f"address {url!r} is not on this machine and not encrypted; use wss://")
    return url


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS context of a listener; None without certificate and key."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise BadInput(f"TLS needs both --cert and --key; only {'--cert' if key is None else '--key'} was given")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"certificate {cert} with key {key}: {error}") from None
    return context


def client_tls(url: str, pin: str = "") -> ssl.SSLContext | None:
    """TLS context for dialling; None for ws. `pin` is the SHA-256 of a certificate that then needs no authority."""
    if pin and not re.fullmatch(r"(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}", pin):
        raise BadInput(f"fingerprint {pin!r}; expected the SHA-256 of a certificate, 64 hexadecimal digits")
    if urlsplit(url).scheme == "ws":
        if pin:
            raise BadInput(f"a certificate's fingerprint for {url}, which is not encrypted; use wss://")
        return None
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if pin:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # `check_pin` is stricter: it accepts one certificate only
    return context


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def fingerprint_of(path: str | Path) -> str:
    """SHA-256 of the first certificate in a PEM file, which a server presents as its own; the others are its authorities'."""
    try:
        found = PEM.search(Path(path).read_text())
        if found is None:
            raise BadInput(f"certificate {path}: it has no complete block -----BEGIN CERTIFICATE-----")
        return fingerprint(ssl.PEM_cert_to_DER_cert(found[0]))
    except OSError as error:
        raise BadInput(f"certificate {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInput(f"certificate {path} is broken: {error}") from None


def check_pin(certificate: bytes | None, pin: str) -> None:
    """Raise `BadInput` unless the other side's certificate is the pinned one."""
    found = fingerprint(certificate or b"")
    if not hmac.compare_digest(found, pin.replace(":", "").lower()):
        raise BadInput(f"the certificate's fingerprint is {found}, not the pinned {pin}")
