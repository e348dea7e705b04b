"""The kind `gateway`: one endpoint for many teams."""

# ruff: noqa: ARG002 - a kind takes what others need

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.gateway import cloud, database, managed, postgres_program
from llm_serving.kinds.gateway import resolve as resolving
from llm_serving.kinds.gateway.blueprint import Blueprint, Budget, Team
from llm_serving.kinds.gateway.deployment import ADMIN, DATABASE, GATEWAY, GatewayDeployment
from llm_serving.kinds.gateway.litellm_env import LiteLlmEnv
from llm_serving.kinds.gateway.litellm_settings import name_backend
from llm_serving.kinds.gateway.stack import CACHE_NODES, GatewayStack
from llm_serving.services import rendered
from llm_serving.services.kinds import Kind
from llm_serving.services.local_server import LocalServer
from llm_serving.services.rendered import Rendered
from llm_serving.services.service import Resources, Service
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Unavailable


class Postgres(LocalServer):
    """Takes the place of RDS on this machine. It is installed together with LiteLLM, whose database it is."""

    NAME = DATABASE
    START_S = 120.0

    def is_installed(self) -> bool:
        return not database.find_missing() and LiteLlmEnv().is_ready()

    def install(self, on_progress: Callable[[str], None]) -> None:
        missing_programs = database.find_missing()
        if missing_programs:
            raise Unavailable(
                f"{missing_programs}: not found on this machine; a gateway needs it. Fix: {database.INSTALL}."
            )
        LiteLlmEnv().ensure(on_progress)

    def build_service(self, port: int, folder: Path) -> Service:
        return Service(
            name=DATABASE,
            role=DATABASE,
            command=(sys.executable, postgres_program.__file__, str(port), str(folder)),
            port=port,
            start_s=1,
            resources=Resources(memory_bytes=200_000_000),
        )


class GatewayKind(Kind[Blueprint, GatewayDeployment]):
    """Keys, budgets and limits; each method is described in `Kind`."""

    NAME = "gateway"
    SETTINGS = Blueprint
    DEPLOYMENT = GatewayDeployment
    VALIDATOR = "llm_serving.kinds.gateway.validation.validate"
    REFRESHED = ("sample", "slo")

    resolve = staticmethod(resolving.resolve)

    def list_port_names(self, blueprint: Blueprint) -> list[str]:
        return [GATEWAY, ADMIN]

    def list_local_servers(self, blueprint: Blueprint) -> tuple[LocalServer, ...]:
        return (Postgres(),)

    def can_fork(self, blueprint: Blueprint) -> bool:
        return False

    def list_managed(self, deployment: GatewayDeployment, connect: Callable[[str], Any]) -> list[dict[str, Any]]:
        return managed.list_rows(deployment.stack, connect) if deployment.stack else []

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        deployment = rendered.read(file, fleet, Rendered[GatewayStack]).value
        return cloud.list_units(deployment.stack, deployment.services)

    def describe(self, blueprint: Document[Blueprint], deployment: GatewayDeployment) -> Iterable[tuple[str, str]]:
        for name, backends in deployment.routes.items():
            route = blueprint.value.routes[name]
            fallback = f", then {' and '.join(route.fallback)}" if route.fallback else ""
            semantic = route.cache.semantic if route.cache else None
            semantic_text = f"; same meaning, same answer, by {name_backend(semantic.embedding)}" if semantic else ""
            yield "route", f"{name}: {', '.join(backend.name for backend in backends)}{fallback}{semantic_text}"
        if stack := deployment.stack:
            yield "database", f"{stack.database_type} of RDS in two zones, {stack.database_gib} GiB"
            yield "cache", f"{CACHE_NODES} x {stack.cache_type} of ElastiCache for Valkey"
            yield "cost", deployment.cost
        for name, team in deployment.teams.items():
            yield "team", f"{name}: {', '.join([*team.models, *_list_limits(team)])}"

    def build_summary(self, deployment: GatewayDeployment) -> dict[str, Any]:
        return {
            "routes": {name: [backend.name for backend in backends] for name, backends in deployment.routes.items()},
            "teams": {name: team.model_dump(mode="json") for name, team in deployment.teams.items()},
        }


def _list_limits(team: Team) -> Iterator[str]:
    budget = team.budget or Budget()
    limits = {
        "USD a day": budget.day,
        "USD a month": budget.month,
        "requests a minute": team.requests_per_minute,
        "characters a prompt": team.prompt_characters,
        "tokens a minute": team.tokens_per_minute,
    }
    yield from (f"at most {limit:,g} {unit}" for unit, limit in limits.items() if limit is not None)
    if team.priority != "normal":
        yield f"{team.priority} priority"
    if team.personal_data:
        yield f"personal data: {team.personal_data}"


KIND = GatewayKind()
