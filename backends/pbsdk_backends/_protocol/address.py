"""Addresses: which are this machine's own, and which may be connected to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from pbsdk.errors import SetupError

__all__ = ["checked_address", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def checked_address(url: str, allowed: str | None) -> str:
    """Return an address without its last slash; `allowed` names a host that plain http may go to."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise SetupError("the URL is not a valid address; give one such as https://example.org/path") from None
    if parts.username or parts.password:
        raise SetupError("the URL contains a name or password; give the key as api_key= or in the environment")
    if parts.scheme not in {"http", "https"} or not host:
        raise SetupError(f"{url!r} is not a valid address; give one such as https://example.org/path")
    if parts.query or parts.fragment:
        raise SetupError("the URL has a part after ? or #; give only the address")
    if parts.scheme == "http" and not is_loopback(host) and host != (allowed or "").lower():
        raise SetupError(
            f"http to {host} would send texts and the key unencrypted; use https, "
            f'or allow it by name with allow_plain_http="{host}"'
        )
    return url.rstrip("/")
