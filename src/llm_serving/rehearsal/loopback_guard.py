"""Keeps web pages from the embedded AWS: a browser sends their requests to ports of this machine too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from llm_serving.loopback import is_loopback

_FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site with which browsers mark what another page asked for."""


class LoopbackGuard:
    """A WSGI application that answers clients of this machine alone; AWS's tools send none of the refused headers."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if _is_foreign(environ):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The embedded AWS answers programs of this machine alone, by a name of it and without Origin.\n"]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer


def _is_foreign(environ: dict[str, Any]) -> bool:
    """Return whether a web page asks: with its origin, or with a name that resolves to a loopback address."""
    host, origin = environ.get("HTTP_HOST", "localhost"), environ.get("HTTP_ORIGIN")
    return (
        not is_loopback(host)
        or (origin is not None and not is_loopback(urlsplit(origin).netloc))
        or environ.get("HTTP_SEC_FETCH_SITE") in _FOREIGN_SITES
    )
