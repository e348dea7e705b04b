"""Which hosts are this machine, and requests to them."""

from __future__ import annotations

import ipaddress
import urllib.request
from typing import Any
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


class DirectLoopback(urllib.request.ProxyHandler):
    def proxy_open(self, request: urllib.request.Request, proxy: str, scheme: str) -> Any:
        """Ask no proxy for this machine: one elsewhere would read what is sent, and ask itself."""
        return None if is_loopback(request.host) else super().proxy_open(request, proxy, scheme)


OPENER = urllib.request.build_opener(DirectLoopback)
