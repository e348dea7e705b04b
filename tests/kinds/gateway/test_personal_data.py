"""LiteLLM's hook masks or blocks what recognizers find; tests/kinds/gateway/test_gateway.py has the real ones."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest

from llm_serving.kinds.gateway.blueprint import PersonalData
from tests.kinds.gateway.test_request_guard import NAMES, Refused

MODULE = "llm_serving.kinds.gateway.personal_data"
PICTURE = "data:image/png;base64,a@b.example"


def create_recognizer(pattern: str, entity: str, score: float) -> type[Any]:
    """Create a class in place of one of Presidio's."""

    class Recognizer:
        supported_entities = (entity,)

        def analyze(self, text: str, _: object) -> list[SimpleNamespace]:
            found = re.finditer(pattern, text)
            return [
                SimpleNamespace(start=match.start(), end=match.end(), score=score, entity_type=entity)
                for match in found
            ]

    return Recognizer


@pytest.fixture
def hook() -> Iterator[Any]:
    """The hook's module, without LiteLLM and Presidio, which have an environment of their own."""
    recognizers = {
        "EmailRecognizer": create_recognizer(r"[a-z]+@[a-z.]+", "EMAIL_ADDRESS", 1.0),
        "PhoneRecognizer": create_recognizer(r"\d{5,}", "PHONE_NUMBER", 0.4),
        "UsSsnRecognizer": create_recognizer(r"\d{9}", "US_SSN", 0.05),
        "IbanRecognizer": create_recognizer(r"DE\d{8}", "IBAN_CODE", 1.0),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in (*NAMES, "tldextract", "presidio_analyzer"):
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setattr(sys.modules["fastapi"], "HTTPException", Refused, raising=False)
        patch.setattr(sys.modules[NAMES[-1]], "CustomLogger", object, raising=False)
        patch.setattr(sys.modules["tldextract"], "TLDExtract", lambda **_: None, raising=False)
        others = dict.fromkeys(("CreditCardRecognizer", "IpRecognizer"), object)
        predefined = SimpleNamespace(**recognizers, **others)
        patch.setattr(sys.modules["presidio_analyzer"], "predefined_recognizers", predefined, raising=False)
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE)


def call(hook: Any, team: str, body: dict[str, Any], **own: Any) -> dict[str, Any]:
    """Return the request after the hook, as LiteLLM has it."""
    teams = {"private": {"personal_data": "mask"}, "strict": {"personal_data": "block"}, "search": {}}
    guard = hook.PersonalDataGuard(teams, ["email", "phone", "us-ssn", "iban"])
    data = {**body, "proxy_server_request": {"body": body}, "litellm_call_id": "c@d.example", **own}
    asyncio.run(guard.async_pre_call_hook(SimpleNamespace(team_id=team), None, data, "completion"))
    return data


def test_every_kind_in_settings_has_a_recognizer(hook: Any) -> None:
    assert set(hook.RECOGNIZERS) == set(get_args(PersonalData))


def test_what_is_found_is_replaced_by_its_kind_and_what_overlaps_by_the_surest(hook: Any) -> None:
    guard, found = hook.PersonalDataGuard({}, ["email", "phone", "us-ssn", "iban"]), Counter[str]()
    masked = guard.mask("a@b.example, 12345 or DE12345678; 7 and c@d.example", found)
    assert masked == "<EMAIL_ADDRESS>, <PHONE_NUMBER> or <IBAN_CODE>; 7 and <EMAIL_ADDRESS>"
    assert found == {"EMAIL_ADDRESS": 2, "PHONE_NUMBER": 1, "IBAN_CODE": 1}
    assert guard.mask("123456789", Counter()) == "<PHONE_NUMBER>", "a guess of 0.05 is none"


def test_all_texts_of_a_client_are_masked_and_nothing_else(hook: Any) -> None:
    parts = [
        {"type": "text", "text": "a@b.example"},
        {"type": "text", "text": "data: a@b.example"},
        {"type": "image_url", "image_url": {"url": PICTURE.replace("@b.", "")}},
        {"type": "input_audio", "input_audio": {"data": "a@b.example"}},
    ]
    body = {
        "model": "a@b.example",
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 123456,
        "user": "a@b.example",
    }
    metadata = {
        "user_api_key": "x",
        "owner": "a@b.example",
        "ip": "a@b.example",
        "requester_metadata": {"owner": "a@b.example", "headers": {"host": "a@b.example"}},
        "headers": {"host": "a@b.example"},
    }
    data = call(hook, "private", body, metadata=metadata)
    texts = [part["text"] for part in data["messages"][0]["content"][:2]]
    assert texts == ["<EMAIL_ADDRESS>", "data: <EMAIL_ADDRESS>"]
    assert data["messages"][0]["content"][2:] == parts[2:]
    assert (data["model"], data["max_tokens"], data["user"]) == ("a@b.example", 123456, "<EMAIL_ADDRESS>")
    assert data["litellm_call_id"] == "c@d.example"
    assert data["metadata"] == {
        "user_api_key": "x", "owner": "<EMAIL_ADDRESS>", "ip": "a@b.example",
        "requester_metadata": {"owner": "<EMAIL_ADDRESS>", "headers": {"host": "a@b.example"}},
        "headers": {"host": "a@b.example"},
        "spend_logs_metadata": {"personal_data": {"EMAIL_ADDRESS": 5}},
    }  # fmt: skip


def test_metadata_beside_litellm_s_own_is_masked_too(hook: Any) -> None:
    data = call(
        hook, "private", {"input": "a", "metadata": {"owner": "a@b.example"}}, litellm_metadata={"user_api_key": "x"}
    )
    assert data["metadata"] == {"owner": "<EMAIL_ADDRESS>"}
    assert data["litellm_metadata"]["spend_logs_metadata"] == {"personal_data": {"EMAIL_ADDRESS": 1}}


@pytest.mark.parametrize("team", ["private", "strict"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", [1, 2]), ("prompt", [[1, 2]]), ("input", [1, 2]), ("input_ids", [1, 2]), ("prompt_embeds", "AAAA"),
        ("messages", [{"role": "system", "content": [{"type": "prompt_embeds", "data": "AAAA"}]}]),
    ],
)  # fmt: skip
def test_tokens_and_vectors_in_which_nothing_is_found_are_refused_where_texts_are_searched(
    hook: Any, team: str, field: str, value: list[Any]
) -> None:
    with pytest.raises(Refused) as refused:
        call(hook, team, {field: value})
    message = f"{field} has tokens or vectors, in which personal data is not found: send text"
    assert refused.value.args == (400, {"error": {"message": message, "type": "personal_data", "param": field}})
    assert call(hook, "search", {field: value})[field] == value
    assert call(hook, team, {"prompt": ["a", "b"], "stop_token_ids": [7]})["prompt"] == ["a", "b"]


def test_a_team_that_blocks_gets_400_with_kinds_alone_and_one_without_a_guardrail_goes_on(hook: Any) -> None:
    with pytest.raises(Refused) as refused:
        call(hook, "strict", {"input": ["12345", "a@b.example"]})
    message = "The request has personal data: EMAIL_ADDRESS, PHONE_NUMBER"
    assert refused.value.args == (400, {"error": {"message": message, "type": "personal_data"}})
    assert call(hook, "strict", {"input": "none"})["input"] == "none"
    for team in ("search", "unknown"):
        assert call(hook, team, {"input": "a@b.example"})["input"] == "a@b.example"
