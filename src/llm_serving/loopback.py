"""Which hosts are this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(authority: str) -> bool:
    """Return whether a host, with or without a port, is this machine: localhost (RFC 6761, 6.3) or a
    loopback address. Names below localhost are not: some resolvers ask DNS for them.

    Args:
        authority: as in a URL or a Host header, such as localhost:8000 or [::1].
    """
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
