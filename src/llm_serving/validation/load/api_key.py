"""The API key of a gateway in front of a deployment."""

from __future__ import annotations

import os
import urllib.request
from urllib.parse import urlsplit

from llm_serving.loopback import DirectLoopback, is_loopback
from llm_serving.settings.errors import InputError

VARIABLE = "BLUEPRINT_API_KEY"
"""A name of its own: other programs' keys, such as OPENAI_API_KEY, are not for this server."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none: urllib would send the key along, to any host and without TLS."""


OPENER = urllib.request.build_opener(NoRedirects, DirectLoopback)
"""For requests with a key; a redirect is an `HTTPError` with its status."""


def build_headers(url: str, variable: str = VARIABLE) -> dict[str, str]:
    """Return the headers with the key in a variable, if it is set; refuses to send it from here without TLS.

    Raises:
        InputError: it is set, and is no key, or would leave this machine without TLS.
    """
    key = os.environ.get(variable, "").strip()  # of a file with Windows' ends of lines, for example
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):  # what sends headers would print it with its error
        raise InputError(f"{variable}: it has characters that no key has. Fix: set it to the key alone.")
    address = urlsplit(url)
    if address.scheme != "https" and not is_loopback(address.netloc):
        raise InputError(
            f"{variable}: set for {url}: without TLS everybody on the way could read the key. "
            f"Fix: use an https URL, or unset {variable}."
        )
    return {"Authorization": f"Bearer {key}"}
