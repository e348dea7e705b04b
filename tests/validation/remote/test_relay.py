"""How a container asks S3, whose answers may break off."""

from __future__ import annotations

import http.server
import threading

import pytest

from llm_serving.validation.remote import relay
from tests.http_handler import QuietHandler


def test_an_answer_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [100, 5]

    class BreaksOff(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(lengths.pop(0)))
            self.end_headers()
            self.wfile.write(b"whole")

    monkeypatch.setattr(relay.time, "sleep", lambda _: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BreaksOff) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            assert relay._ask_s3(f"http://127.0.0.1:{server.server_port}") == b"whole"
        finally:
            server.shutdown()
    assert not lengths
