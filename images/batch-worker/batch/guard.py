"""Keeps web pages from an API that listens on this machine only: a browser sends their requests to it too."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

_FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site with which browsers mark what another page asked for."""


def is_loopback(authority: str) -> bool:
    """Return whether a host, with or without a port, is this machine: localhost or a loopback address."""
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_foreign(request: web.BaseRequest) -> bool:
    """Return whether a web page asks: with its origin, or with a name that resolves to a loopback address."""
    origin = request.headers.get("Origin")
    return (
        not is_loopback(request.host)
        or (origin is not None and not is_loopback(urlsplit(origin).netloc))
        or request.headers.get("Sec-Fetch-Site") in _FOREIGN_SITES
    )
