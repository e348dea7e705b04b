"""The base of HTTP servers in tests: it logs nothing, and answers in one call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """A request handler that logs nothing."""

    def handle(self) -> None:
        """Answer until the client leaves, whichever way it does."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def respond(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole response; a client that left is no error."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def respond_json(self, payload: Any, status: int = 200) -> None:
        """Send a whole response of JSON."""
        self.respond(status, json.dumps(payload).encode(), {"Content-Type": "application/json"})

    def log_message(self, *_: object) -> None:
        """Log nothing."""
