"""Which names a server answers to, so that no web page can use a browser to reach it.

A page from anywhere can make a browser send requests to this machine. It can even give its own name this machine's
address once the browser has looked it up (DNS rebinding), and then read the answers. But the browser says which name it
asked for (`Host`), and whose page it was (`Origin`). So a name that is not this server's is refused; an address in digits
has no name to rebind. And a page of another origin is refused unless its host is allowed by name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

__all__ = ["Hosts"]

ANY = "*"
_PORTS = {"http": 80, "https": 443}


class Hosts:
    """The names that a server answers to, besides addresses in digits, `localhost` and the machine's own name.

    Args:
        allowed: further names; `*` for any.

    >>> hosts = Hosts(["models.example"])
    >>> [hosts.refusal(host, []) == "" for host in ("127.0.0.1:8000", "[::1]", "models.example", "evil.example")]
    [True, True, True, False]
    >>> hosts.refusal("localhost:8000", ["http://localhost:8000", "https://models.example"])
    ''
    >>> hosts.answer_to("gpu-box")
    >>> [hosts.refusal("gpu-box:8000", [f"http://gpu-box:{port}"]) == "" for port in (8000, 3000)]
    [True, False]
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self._own = self._allowed | {"localhost", socket.gethostname().lower()}

    def answer_to(self, name: str) -> None:
        """Take a name as the server's own; pages of that host may use it only from the same port."""
        self._own |= {name.lower()}

    def refusal(self, host: str, origins: Iterable[str]) -> str:
        """Say why a request for `host` from pages of `origins` is refused; nothing if it isn't."""
        if ANY in self._allowed:
            return ""
        asked = _split(f"//{host}")
        name = _name(asked)
        if not _is_address(name) and name not in self._own:
            return (
                f"this server does not answer to the name {host[:100]!r}; if it is its own, start it with --allow-host"
            )
        for origin in origins:
            page = _split(origin)
            if _name(page) not in self._allowed and not _same(page, asked):
                return f"pages of {origin[:100]!r} may not use this server; to let them, start it with --allow-host"
        return ""


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:
        return urlsplit("")
    return parts


def _name(parts: SplitResult) -> str:
    return (parts.hostname or "").rstrip(".")


def _same(page: SplitResult, asked: SplitResult) -> bool:
    usual = _PORTS.get(page.scheme)
    return bool(usual) and _name(page) == _name(asked) and (page.port or usual) == (asked.port or usual)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
