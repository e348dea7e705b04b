"""Keeps web pages and other users of this machine from the embedded AWS, whose port both reach."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from llm_serving.loopback import is_loopback

_FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site with which browsers mark what another page asked for."""


_ACCESS_KEY = re.compile(r"(?:^AWS |Credential=|AWSAccessKeyId=)(\w+)")
"""In a signature of any version, of a header or of a presigned URL."""


class LoopbackGuard:
    """A WSGI application that answers clients of this machine only; AWS's tools send none of the refused headers.

    Args:
        access_key: what a request is signed with; none is asked for if it is empty.
    """

    def __init__(self, application: Any, access_key: str = "") -> None:
        self._application = application
        self._access_key = access_key

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if _is_foreign(environ):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The embedded AWS answers programs of this machine only, by a name of it and without Origin.\n"]
        if self._access_key and not _is_ready_check(environ) and not self._has_access_key(environ):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The embedded AWS answers only requests that are signed with its access key.\n"]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer

    def _has_access_key(self, environ: dict[str, Any]) -> bool:
        """Return whether every signature names the access key, and one is there."""
        parts = (environ.get("HTTP_AUTHORIZATION", ""), environ.get("QUERY_STRING", ""))
        names = [name for part in parts for name in _ACCESS_KEY.findall(part)]
        return bool(names) and all(hmac.compare_digest(name.encode(), self._access_key.encode()) for name in names)


def _is_ready_check(environ: dict[str, Any]) -> bool:
    """Return whether it asks for moto's own settings, which say that it is up and nothing of what it holds."""
    return (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("GET", "/moto-api/config")


def _is_foreign(environ: dict[str, Any]) -> bool:
    """Return whether a web page asks: with its origin, or with a name that resolves to a loopback address."""
    host, origin = environ.get("HTTP_HOST", "localhost"), environ.get("HTTP_ORIGIN")
    return (
        not is_loopback(host)
        or (origin is not None and not is_loopback(urlsplit(origin).netloc))
        or environ.get("HTTP_SEC_FETCH_SITE") in _FOREIGN_SITES
    )
