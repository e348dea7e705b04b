"""Hosts of this machine are told from all others, however a URL or a header writes them."""

from __future__ import annotations

import pytest

from llm_serving.loopback import is_loopback


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
