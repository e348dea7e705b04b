"""Hosts of this machine are told from all others, however a URL or a header writes them."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer

import pytest

from llm_serving.loopback import DirectLoopback, is_loopback
from tests.http_handler import QuietHandler


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:5000", "127.9.9.9", "[::1]", "[::1]:443"])
def test_a_host_of_this_machine_is_loopback_with_or_without_a_port(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "example.org",
        "localhost.example.org",
        "a.localhost",
        "127.0.0.1.example.org:80",
        "10.0.0.1",
        "[::2]",
        "[::1",
    ],
)
def test_any_other_host_is_not(host: str) -> None:
    assert not is_loopback(host)


def test_a_proxy_is_asked_for_other_machines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        opener = urllib.request.build_opener(DirectLoopback)  # it reads the variables once
        with pytest.raises(urllib.error.HTTPError, match="501"):
            opener.open("http://llm.example.org", timeout=60)
        with pytest.raises(urllib.error.URLError, match="refused"):
            opener.open("http://127.0.0.1:9", timeout=60)
        proxy.shutdown()
