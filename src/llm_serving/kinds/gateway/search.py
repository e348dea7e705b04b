"""Where a gateway on this machine keeps answers, and finds them by meaning: Valkey or Redis with a search module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from llm_serving.kinds.gateway import litellm_settings
from llm_serving.kinds.gateway.blueprint import Blueprint
from llm_serving.settings.document import Conflict

INSTALL = "run Valkey with valkey-search there, such as the image valkey/valkey-bundle, or Redis 8, or remove semantic"

_TIMEOUT_S = 2.0


def check(settings: Blueprint) -> Iterator[Conflict]:
    """Yield what cannot be kept, or not be found by meaning."""
    for name, route in settings.routes.items():
        if route.cache and not settings.shared_counts:
            reason, key_path = "nothing holds the answers", ("routes", name, "cache")
            match = "semantic" if route.cache.semantic else "exact"
            yield Conflict(key_path, reason, "set shared_counts: redis://HOST:6379", match)
    url, routes = settings.shared_counts, _list_routes(settings)
    if not url or not routes:
        return
    if database := urlsplit(url).path.lstrip("/").lstrip("0"):
        fix = f"set shared_counts: {url.removesuffix(database)}0"
        yield Conflict(("shared_counts",), "search modules index database 0 only", fix, url)
    elif has_search(url) is False:
        reason = f"it has no search module, and routes.{routes[0]}.cache.semantic needs one"
        yield Conflict(("shared_counts",), reason, INSTALL, url)


def describe(settings: Blueprint) -> Iterator[str]:
    """Yield what the user should know."""
    url = settings.shared_counts
    if url and _list_routes(settings) and has_search(url) is None:
        unknown = f"{url} does not say whether it has a search module"
        yield f"{unknown}. Without one, only requests of the same body are found."
    for route, place in litellm_settings.list_embeddings(settings).items():
        if place.backend.bedrock:
            model = place.backend.bedrock
            yield f"{model} of Bedrock is not on this machine: {route} finds only requests of the same body."


def _list_routes(settings: Blueprint) -> list[str]:
    embeddings = litellm_settings.list_embeddings(settings)
    return [route for route, place in embeddings.items() if not place.backend.bedrock]


def has_search(url: str) -> bool | None:
    """Return whether a server has a search module; None where it does not say so within two seconds."""
    import redis  # takes a moment

    login = {name: os.environ.get(f"REDIS_{name.upper()}") for name in ("username", "password")}
    try:
        with redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, **login) as client:
            client.execute_command("FT._LIST")
    except redis.ResponseError as error:
        return False if "unknown command" in str(error).lower() else None
    except redis.RedisError:
        return None
    return True
