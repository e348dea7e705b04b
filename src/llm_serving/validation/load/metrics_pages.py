"""Read the engines' metrics pages."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

from llm_serving import loopback

SETTLE_S = 1.2
"""Wait after the last answer: the engine counts a request just after it sent it, and Locust writes CSV each second."""

LIMIT_S = 30.0
"""For a page: a replica that is busy has not ended, and without its first page its requests count from its start."""


def fetch(urls: Mapping[str, str]) -> dict[str, str]:
    """Return the pages by replica, without replicas that do not respond."""
    pages = {}
    for name, url in urls.items():
        try:
            with loopback.OPENER.open(url, timeout=LIMIT_S) as response:
                pages[name] = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            continue
    return pages
