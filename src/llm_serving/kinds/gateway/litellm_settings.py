"""What LiteLLM is told: its config.yaml, and its rows of teams. No input or output but SQL that is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic_core import to_jsonable_python

from llm_serving.kinds.gateway.blueprint import Backend, Blueprint, Embedding, Price, Source, Team
from llm_serving.kinds.gateway.database import quote, read_statement
from llm_serving.settings import own_yaml
from llm_serving.validation.load import api_key

MILLION = 1_000_000
MOCK = "mock"
BEDROCK = "bedrock"

_COMMON = Path(__file__).with_name("litellm.yaml")

MENDS, GUARD = "litellm_mends.MENDS", "request_guard.GUARD"
PERSONAL_DATA_GUARD, SEMANTIC_CACHE = "personal_data.GUARD", "semantic_cache.CACHE"
"""Hooks of litellm_mends.py, request_guard.py, personal_data.py and semantic_cache.py, which lie beside config.yaml."""

EMBEDDING = "(embedding)"
"""In place of a route's name: what turns questions into vectors, which no team can call."""

_CACHED_CALLS = ("acompletion", "atext_completion", "aembedding")
"""LiteLLM's names of the calls whose answers are cached: chats, completions, embeddings."""

_CACHE_TIMEOUT_S = 2.0
"""For an answer of a cache that hangs, which a request asks several times, until the fifth that fails: with redis-py's
own 5 s the first request took 25 s, and takes 10 (8.1.0, 2026-11-30)."""

_ENGINE_PARAMETERS = ("dimensions", "verbosity")
"""Of embeddings and of chats."""

_ALLOWED_FAILS = 0
"""Failures before that. As the router's own setting it would also close a route's only backend to everybody, with 429.
Source: 1.106.0, router_utils/cooldown_handlers.py."""


def build_config(
    settings: Blueprint, places: Sequence[Place[Any]], redis: Mapping[str, Any], bedrock_region: str = ""
) -> dict[str, Any]:
    """Build config.yaml of LiteLLM 1.106.

    Args:
        places: those of `list_sources`, with their addresses.
        redis: host, port, ssl and db of the cache through which replicas share counts; empty without one.
        bedrock_region: region of Bedrock's guardrail and models; empty where it is not asked.
    """
    common = own_yaml.read(_COMMON)
    redis = {**redis, "socket_timeout": _CACHE_TIMEOUT_S} if redis else redis
    fallbacks = [{name: list(route.fallback)} for name, route in settings.routes.items() if route.fallback]
    callbacks = [
        MENDS,
        GUARD,
        *([PERSONAL_DATA_GUARD] if find_personal_data(settings) else []),
        *([SEMANTIC_CACHE] if list_embeddings(settings) else []),
    ]
    return {
        "model_list": [
            *(_build_model(settings, place, bedrock_region) for place in places if place.route != EMBEDDING),
            *_list_embedding_models(places, bedrock_region),
        ],
        "router_settings": {**common["router_settings"], "fallbacks": fallbacks, **_build_router_cache(redis)},
        "litellm_settings": {
            **common["litellm_settings"],
            "callbacks": callbacks,
            **({"cache": True, "cache_params": _build_cache(settings, redis)} if redis else {}),
        },
        **_build_guardrails(settings, bedrock_region),
        "general_settings": common["general_settings"],
    }


B = TypeVar("B", bound=Source)


class Place(NamedTuple, Generic[B]):
    """A backend in its route, and where it is asked."""

    id: str
    """ROUTE/NAME, and #2 where the route has the name a second time: records of requests keep it, whatever comes before
    or after it later."""

    route: str
    number: int
    backend: B
    url: str = ""
    """Base URL, without /v1."""

    model: str = ""
    """`model` of the requests to it."""

    is_keyed: bool = False
    """Whether it gets the key in the environment."""

    traits: Mapping[str, Any] = MappingProxyType({})
    """What request_guard.py reads of one that tells classes of requests and callers apart."""


def list_places(settings: Blueprint) -> Iterator[Place[Backend]]:
    for route_name, route in settings.routes.items():
        yield from _number_places(route_name, route.deployments)


def list_embeddings(settings: Blueprint) -> dict[str, Place[Embedding]]:
    """Return what turns questions into vectors by the route that asks it; several routes can ask the same one."""
    semantics = {name: route.cache.semantic for name, route in settings.routes.items() if route.cache}
    sources = {name: semantic.embedding for name, semantic in semantics.items() if semantic}
    places = {place.backend: place for place in _number_places(EMBEDDING, list(dict.fromkeys(sources.values())))}
    return {name: places[source] for name, source in sources.items()}


def list_sources(settings: Blueprint) -> list[Place[Any]]:
    """List all backends, and what turns questions into vectors, each once."""
    return [*list_places(settings), *{place.id: place for place in list_embeddings(settings).values()}.values()]


def _number_places(route: str, sources: Sequence[B]) -> Iterator[Place[B]]:
    names = [name_backend(source) for source in sources]
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        earlier = names[:number].count(name)
        yield Place(f"{route}/{name}{f'#{earlier + 1}' if earlier else ''}", route, number, source)


def name_backend(backend: Source) -> str:
    """Return the deployment's name, the host of a URL, Bedrock's id of the model, or `mock`."""
    return backend.deployment or backend.bedrock or (urlsplit(backend.url).netloc if backend.url else MOCK)


def list_bedrock_models(settings: Blueprint) -> tuple[str, ...]:
    """List the models and inference profiles of Bedrock that are asked, each once."""
    return tuple(sorted({place.backend.bedrock for place in list_sources(settings) if place.backend.bedrock}))


def parse_name(backend_id: str) -> str:
    return backend_id.rpartition("/")[2].partition("#")[0]


def _build_guardrails(settings: Blueprint, region: str) -> dict[str, Any]:
    bedrock = settings.guardrails.bedrock
    if not bedrock or not region:
        return {}
    parameters = {
        "guardrail": "bedrock",
        "mode": "pre_call",
        "default_on": True,
        "guardrailIdentifier": bedrock.id,
        "guardrailVersion": bedrock.version,
        "aws_region_name": region,
    }
    return {"guardrails": [{"guardrail_name": BEDROCK, "litellm_params": parameters}]}


def find_personal_data(settings: Blueprint) -> list[str]:
    """Return what requests are searched for; empty where no team asks for it."""
    return list(settings.guardrails.find) if any(team.personal_data for team in settings.teams.values()) else []


def _build_model(settings: Blueprint, place: Place[Backend], region: str) -> dict[str, Any]:
    route, backend = settings.routes[place.route], place.backend
    return {
        "model_name": place.route,
        "litellm_params": {
            "num_retries": route.retries,
            "timeout": route.timeout,
            **_build_source(place, region),
            **({"weight": backend.weight} if backend.weight else {"order": place.number + 1}),
            **_build_price(route.price),
            # Or LiteLLM refuses them with 400 for models that have no name of OpenAI's. The engine knows.
            **({} if backend.bedrock else {"allowed_openai_params": [*_ENGINE_PARAMETERS]}),
        },
        "model_info": {
            "id": place.id,
            "allowed_fails": _ALLOWED_FAILS,
            # Or it refuses `reasoning` of responses and `thinking` of messages, for models that its own list has not,
            # with 400 (1.106.0, llms/openai/responses/transformation.py). The engine knows.
            **({} if backend.bedrock else {"supports_reasoning": True}),
            **place.traits,
            **({"prompt_characters": backend.prompt_characters} if backend.prompt_characters else {}),
        },
    }


def _list_embedding_models(places: Sequence[Place[Any]], region: str) -> Iterator[dict[str, Any]]:
    """List what turns questions into vectors: models that are in no team's list."""
    for place in places:
        if place.route != EMBEDDING or (place.backend.bedrock and not region):
            continue  # a mock's vectors would be those of any question
        source = _build_source(place, region, converses=False)
        yield {
            "model_name": place.id,
            "litellm_params": {"num_retries": 0, **source, **_build_price(None)},
            "model_info": {"id": place.id, "allowed_fails": _ALLOWED_FAILS, "mode": "embedding"},
        }


def build_semantic(settings: Blueprint, places: Sequence[Place[Any]], bedrock_region: str) -> dict[str, dict[str, Any]]:
    """Build what semantic_cache.py reads: by route its embedding, the index of such vectors, and limits.

    Vectors of different models cannot be compared: each model has an index of its own.
    """
    semantic, models = {}, {place.id: place.model for place in places}
    for name, place in list_embeddings(settings).items():
        cache = settings.routes[name].cache
        if (place.backend.bedrock and not bedrock_region) or not cache or not cache.semantic:
            continue
        index = hashlib.sha256(f"{place.id} {models[place.id]}".encode()).hexdigest()[:12]
        limits = {"similarity": cache.semantic.similarity, "timeout": cache.semantic.timeout}
        semantic[name] = {"embedding": place.id, "index": index, **limits}
    return semantic


def _build_source(place: Place[Any], region: str, *, converses: bool = True) -> dict[str, Any]:
    """Build what says who answers.

    Args:
        converses: Bedrock's model answers chats, by its Converse API.
    """
    backend = place.backend
    if backend.bedrock and region:  # with a key LiteLLM would send it in place of the role's signature
        return {"model": f"bedrock/{'converse/' * converses}{backend.bedrock}", "aws_region_name": region}
    key = f"os.environ/{api_key.VARIABLE}" if place.is_keyed else "none"
    text = (isinstance(backend, Backend) and backend.mock) or (
        f"A mock of {backend.bedrock}." if backend.bedrock else ""
    )
    return {
        "model": f"openai/{place.model}",
        "api_key": key,
        **({"mock_response": text, "use_chat_completions_api": True} if text else {"api_base": f"{place.url}/v1"}),
    }


def _build_price(price: Price | None) -> dict[str, float]:
    """Build the list price; 0 where there is none, or LiteLLM looks the model's name up in its own list."""
    input_usd, output_usd = (price.input, price.output) if price else (0.0, 0.0)
    prices = {"input_cost_per_token": input_usd, "output_cost_per_token": output_usd}
    return {name: round(usd / MILLION, 15) for name, usd in prices.items()}


def parse_redis(url: str | None) -> dict[str, Any]:
    """Parse `shared_counts`; empty where it is left out."""
    if url is None:
        return {}
    address = urlsplit(url)
    return {
        "host": address.hostname,
        "port": address.port or 6379,
        "db": int(address.path.lstrip("/") or 0),
        **({"ssl": True} if address.scheme == "rediss" else {}),
    }


def _build_router_cache(redis: Mapping[str, Any]) -> dict[str, Any]:
    """Build the same cache for LiteLLM's router, which ignores `redis_ssl` (router.py of 1.106.0, Router.__init__)."""
    if not redis:
        return {}
    options = {key: value for key, value in redis.items() if key not in ("host", "port")}
    return {"redis_host": redis["host"], "redis_port": redis["port"], "cache_kwargs": options}


def _build_cache(settings: Blueprint, redis: Mapping[str, Any]) -> dict[str, Any]:
    """Build the cache of counts: only with it does LiteLLM share limits. Of what has answers kept, the hook decides."""
    is_kept = any(route.cache for route in settings.routes.values())
    return {"type": "redis", "supported_call_types": [*_CACHED_CALLS] if is_kept else [], **redis}


def build_team_sql(teams: str) -> str:
    """Build the statements that make LiteLLM's teams those that `dump_teams` wrote. Keys of others no longer work."""
    return read_statement("teams", teams=quote(teams))


def dump_teams(teams: Mapping[str, Team]) -> str:
    """Write the teams, without what they leave out."""
    return dump({name: team.model_dump(exclude_defaults=True) for name, team in teams.items()})


def dump(value: Any) -> str:
    """Write JSON, which is YAML too, for a variable; supervisord's hold no backslash."""
    return json.dumps(to_jsonable_python(value), separators=(",", ":"), ensure_ascii=False)
