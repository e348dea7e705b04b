"""`auth` of a blueprint: keys of teams, which nginx before each router asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from llm_serving.catalog.routers import Router
from llm_serving.fleet.model import Name
from llm_serving.services import team_keys
from llm_serving.services.environment import Environment
from llm_serving.services.team_keys import TeamKeys
from llm_serving.settings.document import Conflict, Settings
from llm_serving.settings.units import Count

USAGE_PORT = "router-usage"
"""Name of the port of what teams used."""


RequestsPerMinute = Annotated[int, Count("a number of requests", "600", 1, 10_000_000)]


class Auth(Settings):
    """Who may call: a request without a key of a team gets 401, and teams have limits."""

    keys: TeamKeys
    """Where the keys of teams are."""

    requests_per_minute: dict[Name, RequestsPerMinute] = Field(default_factory=dict)
    """Maximum requests a minute of a team at each router, by its name; further ones get 429. Unlimited by default."""


def check(auth: Auth | None, router: Router, environment: Environment) -> Iterator[Conflict]:
    """Yield why keys cannot be asked for."""
    if auth is None:
        return
    yield from team_keys.check(auth.keys, ("auth", "keys"), environment)
    yield from team_keys.check_region(auth.keys.stored, ("auth", "keys"), environment, "a router")
    if not any("{team_keys}" in argument for argument in router.front):
        field = "file" if auth.keys.file else "secret"
        reason = "nginx, which asks for keys, is not before the router of this engine and framework"
        fix = "remove auth, or choose an engine and a framework with vllm-router"
        yield Conflict(("auth", "keys", field), reason, fix, getattr(auth.keys, field))
