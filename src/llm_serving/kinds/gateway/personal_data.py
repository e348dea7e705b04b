"""LiteLLM's hook for personal data in requests: copied beside its config.yaml, it runs in LiteLLM's own environment.

Presidio's recognizers find it by patterns and check digits alone, without a language model: no names, no addresses.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import tldextract
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from presidio_analyzer import predefined_recognizers as presidio

TEAMS_VARIABLE, KINDS_VARIABLE = "GATEWAY_TEAMS", "GATEWAY_PERSONAL_DATA"

RECOGNIZERS = {
    "credit-card": presidio.CreditCardRecognizer,
    "email": presidio.EmailRecognizer,
    "iban": presidio.IbanRecognizer,
    "ip": presidio.IpRecognizer,
    "phone": presidio.PhoneRecognizer,
    "us-ssn": presidio.UsSsnRecognizer,
}
"""By what blueprints call it."""

_MIN_SCORE = 0.4
"""Presidio's score of a phone number without a word before it, its lowest that is more than a guess."""

_BLOCK = "block"
_TEXT_FIELDS = ("prompt", "input")
"""What may have tokens in place of texts."""

_VECTORS = ("input_ids", "prompt_embeds", "embed_overrides")
"""What has tokens or vectors only, as fields, or as the type of a message's part. Source: request models of vLLM 0.32.0
and SGLang 0.5.23."""

_PICTURE = re.compile(r"data:[\w/.+-]+;base64,[A-Za-z0-9+/=]*")

# Or Presidio downloads a list of domains, and keeps it in the home folder.
tldextract.extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())


class PersonalDataGuard(CustomLogger):  # type: ignore[misc] # of another environment
    """Masks personal data in the requests of some teams, and refuses those of others that have any."""

    def __init__(self, teams: Mapping[str, Any], kinds: Iterable[str]) -> None:
        """Take the blueprint's teams, and what is looked for."""
        super().__init__()
        self._actions = {name: team.get("personal_data") for name, team in teams.items()}
        self._recognizers = [RECOGNIZERS[kind]() for kind in kinds]

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: object,  # noqa: ARG002 - LiteLLM names the arguments
        data: dict[str, Any],
        call_type: str,  # noqa: ARG002
    ) -> None:
        """Refuse a request with personal data with 400, or replace the data by its kind and record how often.

        One of tokens or vectors, in which nothing is found, is refused too.
        """
        action = self._actions.get(user_api_key_dict.team_id)
        if action is None:
            return
        if field := find_unreadable({name: data.get(name) for name in data["proxy_server_request"]["body"]}):
            message = f"{field} has tokens or vectors, in which personal data is not found: send text"
            raise HTTPException(400, {"error": {"message": message, "type": "personal_data", "param": field}})
        counts: Counter[str] = Counter()
        masked = await asyncio.to_thread(self._mask_all, data, counts)
        if counts and action == _BLOCK:
            message = f"The request has personal data: {', '.join(sorted(counts))}"
            raise HTTPException(400, {"error": {"message": message, "type": "personal_data"}})
        for container, field, value in masked:
            container[field] = value
        if counts:
            _find_metadata(data)["spend_logs_metadata"] = {"personal_data": dict(counts)}

    def _mask_all(self, data: dict[str, Any], counts: Counter[str]) -> list[tuple[MutableMapping[str, Any], str, Any]]:
        return [
            (container, field, change_texts(container[field], lambda text: self.mask(text, counts)))
            for container, field in list_fields(data)
        ]

    def mask(self, text: str, counts: Counter[str]) -> str:
        """Replace what is found by its kind, and count it; what overlaps counts as the surest."""
        spans = [
            span
            for recognizer in self._recognizers
            for span in recognizer.analyze(text, recognizer.supported_entities)
            if span.score >= _MIN_SCORE
        ]
        end, parts = len(text), []
        for span in _list_separate(spans):
            counts[span.entity_type] += 1
            parts += [text[span.end : end], f"<{span.entity_type}>"]
            end = span.start
        return "".join([*parts, text[:end]][::-1])


def _list_separate(spans: Iterable[Any]) -> list[Any]:
    """List those that overlap no surer or longer one, the last one first."""
    separate_spans: list[Any] = []
    for span in sorted(spans, key=lambda span: (-span.score, span.start - span.end)):
        if all(span.end <= other.start or other.end <= span.start for other in separate_spans):
            separate_spans.append(span)
    return sorted(separate_spans, key=lambda span: -span.start)


def list_fields(data: MutableMapping[str, Any]) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    """List where a request has what its client wrote, beside LiteLLM's own fields."""
    body, metadata = data["proxy_server_request"]["body"], _find_metadata(data)
    yield from ((data, field) for field in body if field != "model" and data.get(field, metadata) is not metadata)
    client_metadata = metadata.get("requester_metadata") or {}
    fields = [field for field in (*client_metadata, "tags") if field != "headers"]
    for container in (metadata, client_metadata):
        yield from ((container, field) for field in fields if field in container)


def _find_metadata(data: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Find what LiteLLM records of a request; its place depends on the path."""
    places = (data.get(name) for name in ("litellm_metadata", "metadata"))
    return next((place for place in places if isinstance(place, dict) and "user_api_key" in place), {})


def find_unreadable(body: Mapping[str, Any]) -> str | None:
    """Find the first field with a prompt that is no text."""
    for field, value in body.items():
        if (field in _VECTORS and value) or (field in _TEXT_FIELDS and has_tokens(value)) or has_vectors(value):
            return field
    return None


def has_vectors(value: object) -> bool:
    """Return whether a part of a message, or of what has parts, is of vectors."""
    if isinstance(value, Mapping):
        return value.get("type") in _VECTORS or any(map(has_vectors, value.values()))
    return isinstance(value, list) and any(map(has_vectors, value))


def has_tokens(value: object) -> bool:
    """Return whether a prompt is of tokens, or a list of prompts has one that is."""
    return isinstance(value, int) or (isinstance(value, list) and any(map(has_tokens, value)))


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Change all texts of a JSON value but those of pictures and sound."""
    if isinstance(value, str):
        return value if _PICTURE.fullmatch(value) else change(value)
    if isinstance(value, Mapping):
        return {name: part if name == "input_audio" else change_texts(part, change) for name, part in value.items()}
    return [change_texts(part, change) for part in value] if isinstance(value, list) else value


GUARD = PersonalDataGuard(
    json.loads(os.environ.get(TEAMS_VARIABLE, "{}")), json.loads(os.environ.get(KINDS_VARIABLE, "[]"))
)
