"""LiteLLM's hook for questions that mean the same: copied beside its config.yaml, it runs in LiteLLM's own environment.

LiteLLM keeps an answer under a key that begins with the team (request_guard.py) and goes on with a digest of the whole
request. Beside it this hook keeps the vector of the request's last message, with that key, in an index of a search
module. A request without an answer of its own gets the one under the key of the nearest vector, if that is near enough
and all else is the same: the team, the model, the messages before, all parameters, and the numbers and negations in the
message.

LiteLLM's own semantic caches would take the place of the cache through which replicas share counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from litellm._logging import verbose_proxy_logger
from litellm.caching.caching import Cache
from litellm.integrations.custom_logger import CustomLogger
from redis import ResponseError

ROUTES_VARIABLE = "GATEWAY_SEMANTIC"

SIMILARITY = "similarity"
"""What records of requests have in `spend_logs_metadata`, where a question of other words got the answer."""

_MAX_CHARACTERS = 2_000
"""Longest message that is compared: embedding models read some 500 tokens, and servers that cut off the rest would make
two long texts the same."""

_KEEP_LIMIT_S = 30.0
"""Longest time that keeping a vector takes; nobody waits for it."""

_PAUSE_S = 10.0
"""How long no request waits for either after one had no answer."""

_MAX_OPEN = 1_000
"""Requests whose vectors are kept until they are answered."""

_OF_THE_REQUEST = (400, 413, 422)
"""Statuses of an embedding model that say nothing of the next request."""

_NO_CACHE = {"no-cache": True, "no-store": True}
_ANSWER_FORM = ("stream", "stream_options", "litellm_params", "cache_key")
"""What does not change the answer's text."""

_NEGATION = "not"
_EXACT = re.compile(rf"\d+|\b(?:no|{_NEGATION}|never|cannot|without|except)\b|n['’]t\b", re.IGNORECASE)
"""What makes another question of a message however near its vector is: numbers, and English negations."""


class Question(NamedTuple):
    """The last message of a request."""

    text: str
    namespace: str
    """With which the keys of the team's answers begin."""

    scope: str
    """Digest of all else in the request, the team included."""


class Vector(NamedTuple):
    """A question that was sent to a deployment."""

    index_name: str
    scope: str
    vector: bytes


class SemanticCache(CustomLogger):  # type: ignore[misc] # of another environment
    """Finds the answer to a question that means the same."""

    def __init__(self, routes: Mapping[str, Any]) -> None:
        """Take the routes that compare meanings: each with its embedding, its index and limits."""
        super().__init__()
        self._routes = routes
        self._open: OrderedDict[str, Vector] = OrderedDict()
        self._resume_at = 0.0

    async def find(self, cache: Cache, key: str, request: Mapping[str, Any]) -> tuple[str, float] | None:
        """Return the key of the answer to the nearest question, and its similarity; None where there is none.

        Args:
            key: of the request's own answer.
        """
        route = self._routes.get(_find_metadata(request).get("model_group", ""))
        question = read_question(cache, request) if route else None
        if not route or not question or time.monotonic() < self._resume_at:
            return None
        try:
            async with asyncio.timeout(route["timeout"]):
                vector = await embed(route["embedding"], question.text, request)
                dimensions = len(vector) // struct.calcsize("f")
                index = f"semantic-{route['index']}-{dimensions}"
                self._open[key] = Vector(index, question.scope, vector)
                while len(self._open) > _MAX_OPEN:
                    self._open.popitem(last=False)
                return await self._search(cache, index, question, vector, route[SIMILARITY])
        except Exception as error:  # noqa: BLE001 - whatever fails, a deployment answers
            self._pause(error)
            return None

    async def _search(
        self, cache: Cache, index: str, question: Question, vector: bytes, least: float
    ) -> tuple[str, float] | None:
        client = cache.cache.init_async_client()
        query = f"(@scope:{{{question.scope}}})=>[KNN 1 @vector $vector AS distance]"
        options = ("PARAMS", "2", "vector", vector, "RETURN", "3", "key", "scope", "distance", "DIALECT", "2")
        try:
            reply = await client.execute_command("FT.SEARCH", index, query, *options)
        except ResponseError:
            await _create_index(client, index, len(vector) // struct.calcsize("f"))
            return None
        for row in read_rows(reply):
            similarity = 1 - float(row["distance"])
            # The search module filters by scope; the key says again whose answer it is.
            is_own = row["scope"] == question.scope and row["key"].startswith(f"{question.namespace}:")
            if is_own and similarity >= least:
                return row["key"], similarity
        return None

    async def keep(self, cache: Cache, key: str, ttl_s: float) -> None:
        """Keep the vector of a question whose answer was kept."""
        question = self._open.pop(key, None)
        if question is None:
            return
        name = f"{question.index_name}:{hashlib.sha256(key.encode()).hexdigest()}"
        try:
            async with asyncio.timeout(_KEEP_LIMIT_S):
                client = cache.cache.init_async_client()
                async with client.pipeline(transaction=True) as commands:
                    commands.hset(name, mapping={"key": key, "scope": question.scope, "vector": question.vector})
                    commands.expire(name, max(1, round(ttl_s)))
                    await commands.execute()
        except Exception as error:  # noqa: BLE001 - the answer is on its way
            self._pause(error)

    def _pause(self, error: Exception) -> None:
        """Log what failed, and ask nobody for a while if it would fail again."""
        if getattr(error, "status_code", 0) not in _OF_THE_REQUEST:
            self._resume_at = time.monotonic() + _PAUSE_S
        verbose_proxy_logger.warning("semantic cache: %s: %s", type(error).__name__, str(error)[:200])


def read_question(cache: Cache, request: Mapping[str, Any]) -> Question | None:
    """Read what a chat asks last; None where that is not a text, or its team is not known.

    Args:
        request: what LiteLLM keeps an answer by.
    """
    controls, messages = request.get("cache") or {}, request.get("messages")
    namespace, team = controls.get("namespace"), _find_metadata(request).get("user_api_key_team_id")
    if not messages or not team or namespace != f"team {team}":
        return None
    *before, last = messages
    text = read_text(last) if last.get("role") == "user" else ""
    if not text.strip() or len(text) > _MAX_CHARACTERS:
        return None
    parameters = {name: value for name, value in request.items() if name not in _ANSWER_FORM}
    key = cache.get_cache_key(**{**parameters, "messages": [*before, {**last, "content": ""}]})
    exact = [word if word.isdigit() else _NEGATION for word in _EXACT.findall(text)]
    return Question(text, namespace, hashlib.sha256(json.dumps([key, exact]).encode()).hexdigest())


def read_text(message: Mapping[str, Any]) -> str:
    """Read a message; empty where it has more than text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") if part.get("type") == "text" else None for part in content or ()]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else ""


async def embed(model: str, text: str, request: Mapping[str, Any]) -> bytes:
    """Return the vector of a text as 32-bit numbers, little-endian; its tokens are the request's team's."""
    from litellm.proxy import proxy_server  # which imports this module

    metadata = {name: value for name, value in _find_metadata(request).items() if name.startswith("user_api_key")}
    answer = await proxy_server.llm_router.aembedding(model=model, input=[text], metadata=metadata, cache=_NO_CACHE)
    numbers = answer.data[0]["embedding"]
    return struct.pack(f"<{len(numbers)}f", *numbers)


def read_rows(reply: Any) -> list[dict[str, str]]:
    """Read what FT.SEARCH found.

    Over RESP3, the default of redis-py 8, RediSearch sends a map. valkey-search sends an array over either protocol,
    for which redis-py's own parser has no case (valkey-search, src/commands/ft_search.cc; redis-py 8.1.0,
    commands/search/result.py; 2026-11-26).
    """
    if isinstance(reply, dict):
        rows = [_decode(row)["extra_attributes"] for row in _decode(reply)["results"]]
    else:
        rows = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in reply[2::2]]
    return [{name: _decode_text(value) for name, value in _decode(row).items()} for row in rows]


def _decode(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {_decode_text(name): value for name, value in row.items()}


def _decode_text(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text


async def _create_index(client: Any, index: str, dimensions: int) -> None:
    """Create an index of the hashes whose names begin with its own; one that exists is left as it is."""
    vector = ("HNSW", "6", "TYPE", "FLOAT32", "DIM", str(dimensions), "DISTANCE_METRIC", "COSINE")
    schema = ("SCHEMA", "scope", "TAG", "vector", "VECTOR", *vector)
    try:
        await client.execute_command("FT.CREATE", index, "ON", "HASH", "PREFIX", "1", f"{index}:", *schema)
    except ResponseError as error:
        if "already exists" not in str(error).lower():
            raise


def _find_metadata(request: Mapping[str, Any]) -> dict[str, Any]:
    """Find what LiteLLM records of a request; its place depends on the path."""
    places = (request.get(name) for name in ("litellm_metadata", "metadata"))
    return next((place for place in places if isinstance(place, dict) and "model_group" in place), {})


def record(request: Mapping[str, Any], similarity: float | None) -> None:
    """Let LiteLLM record how near the answered question was; what a client wrote in its place goes."""
    metadata = _find_metadata(request)
    sent_metadata = metadata.get("spend_logs_metadata")
    own_metadata = {**sent_metadata} if isinstance(sent_metadata, dict) else {}
    own_metadata.pop(SIMILARITY, None)
    if similarity is not None:
        own_metadata[SIMILARITY] = similarity
    if own_metadata or sent_metadata:
        metadata["spend_logs_metadata"] = own_metadata


def install(semantic: SemanticCache) -> None:
    """Let LiteLLM's cache ask for answers to other words, and keep the vector of each question with its answer.

    Of LiteLLM 1.106.0 (caching/caching.py) these two read and write the answers to chats.
    """
    get_own, add_own = Cache.async_get_cache, Cache.async_add_cache

    async def get(self: Cache, dynamic_cache_object: Any = None, **request: Any) -> Any:
        record(request, None)
        answer = await get_own(self, dynamic_cache_object, **request)
        key = request.get("cache_key")
        if answer is None and key and (nearest := await semantic.find(self, key, request)):
            other_key, similarity = nearest
            answer = await get_own(self, dynamic_cache_object, **{**request, "cache_key": other_key})
            if answer is not None:
                record(request, round(similarity, 4))
        return answer

    async def add(self: Cache, result: Any, dynamic_cache_object: Any = None, **request: Any) -> None:
        await add_own(self, result, dynamic_cache_object, **request)
        if ttl_s := (request.get("cache") or {}).get("ttl"):
            await semantic.keep(self, request.get("cache_key") or self.get_cache_key(**request), ttl_s)

    Cache.async_get_cache, Cache.async_add_cache = get, add


CACHE = SemanticCache(json.loads(os.environ.get(ROUTES_VARIABLE, "{}")))
install(CACHE)
