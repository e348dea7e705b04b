"""The API key is sent to the server that it is for, and never in clear over a network."""

from __future__ import annotations

import pytest

from llm_serving.settings.errors import InputError
from llm_serving.validation.load import api_key


@pytest.mark.parametrize(
    "url", ["https://llm.example.org", "http://127.0.0.1:8080", "http://localhost:8080", "http://[::1]:1"]
)
def test_the_key_goes_over_tls_or_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", "secret")
    assert api_key.build_headers(url) == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("url", ["http://llm.example.org", "http://10.0.0.8:8080", "http://127.0.0.1.example.org"])
def test_a_key_is_not_sent_in_clear(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", "secret")
    with pytest.raises(InputError) as error:
        api_key.build_headers(url)
    assert str(error.value) == (
        f"BLUEPRINT_API_KEY: set for {url}: without TLS everybody on the way could read the key. "
        "Fix: use an https URL, or unset BLUEPRINT_API_KEY."
    )
    monkeypatch.delenv("BLUEPRINT_API_KEY")
    assert api_key.build_headers(url) == {}


def test_a_key_that_no_header_takes_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_API_KEY", "secret\r\n")
    assert api_key.build_headers("https://llm.example.org") == {"Authorization": "Bearer secret"}
    for text in ("\u201csecret\u201d", "sec\nret"):
        monkeypatch.setenv("BLUEPRINT_API_KEY", text)
        with pytest.raises(InputError) as error:
            api_key.build_headers("https://llm.example.org")
        assert str(error.value) == (
            "BLUEPRINT_API_KEY: it has characters that no key has. Fix: set it to the key alone."
        )


def test_other_programs_keys_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLUEPRINT_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert api_key.build_headers("https://llm.example.org") == {}
