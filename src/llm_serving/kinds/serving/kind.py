"""The kind `serving`: engines behind a router that answer completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_serving import paths
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.serving import (
    adapters,
    context,
    measurements,
    predicted_load,
    summary,
)
from llm_serving.kinds.serving import blueprint as blueprints
from llm_serving.kinds.serving import resolve as resolving
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.checks import pictures
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.price import price_deployment, price_instances
from llm_serving.kinds.serving.roles import compute_fixed_replicas
from llm_serving.kinds.serving.stack import ServingStack
from llm_serving.services import rendered
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.environment import Environment
from llm_serving.services.kinds import Capability, Kind
from llm_serving.services.rendered import Rendered
from llm_serving.settings.document import Document


class ServingKind(Kind[Blueprint, ServingDeployment]):
    """Serving of models; each method is described in `Kind`."""

    NAME = "serving"
    SETTINGS = Blueprint
    DEPLOYMENT = ServingDeployment
    VALIDATOR = "llm_serving.kinds.serving.validation.validate"
    CAPABILITIES = frozenset(Capability)

    read = staticmethod(blueprints.read)
    resolve = staticmethod(resolving.resolve)
    list_port_names = staticmethod(context.list_port_names)
    check_remote_files = staticmethod(adapters.check_remote)
    describe_for_others = staticmethod(summary.describe_for_others)
    price_instances = staticmethod(price_instances)
    estimate_load = staticmethod(predicted_load.predict_requests_per_s)
    describe = staticmethod(summary.describe)
    build_summary = staticmethod(summary.build_payload)

    def read_measurements(self, blueprint: Document[Blueprint], environment: Environment, root: Path) -> Environment:
        prefix = measurements.find_prompts(blueprint, root)
        capacities = measurements.read_all(root / paths.RUNS / resolve_name(blueprint))
        return environment.model_copy(update={"measured": prefix, "capacities": capacities})

    def list_rented(self, file: Path, fleet: Document[Fleet]) -> Iterable[Units]:
        deployment = rendered.read(file, fleet, Rendered[ServingStack]).value
        yield from rendered.list_fargate(deployment.stack.orchestrator, deployment.services, deployment.name)
        if deployment.stack.load_balancer:
            yield Units("application-load-balancer", 1, deployment.name)

    def get_engine(self, blueprint: Blueprint) -> str:
        return blueprint.engine

    def get_framework(self, blueprint: Blueprint) -> str:
        return blueprint.framework

    def can_fork(self, blueprint: Blueprint) -> bool:
        # vLLM prepares a picture in several threads before its further processes start; Dynamo and Ray have their own.
        return not pictures.reads_pictures(blueprint) and not blueprint.framework_row.module

    def refresh(self, deployment: ServingDeployment, blueprint: Blueprint) -> ServingDeployment:
        settings = {"traffic": blueprint.traffic, "slo": blueprint.held_slo, "unused_keys": blueprint.unused_keys}
        return deployment.model_copy(update=settings)

    def price(self, deployment: ServingDeployment) -> float | None:
        priced = price_deployment(deployment)
        return priced and priced[0]

    def fix_replicas(self, blueprint: Blueprint) -> dict[tuple[str, ...], dict[str, Any]]:
        return {
            blueprint.find_key_path(name): {"replicas": compute_fixed_replicas(role).min, "scale": None}
            for name, role in blueprint.roles.replica_roles.items()
            if role.replicas.min < role.replicas.max
        }

    def move_to_pool(self, blueprint: Document[Blueprint], pool: str) -> Document[Blueprint]:
        roles = blueprint.value.roles
        roles_by_name = {name: getattr(roles, name) for name in ("worker", "prefill", "decode")}
        moved = {name: role.model_copy(update={"pool": pool}) for name, role in roles_by_name.items() if role}
        groups = {
            group: {name: role.model_copy(update={"pool": pool}) for name, role in getattr(roles, group).items()}
            for group in ("workers", "models")
        }
        value = blueprint.value.model_copy(update={"roles": roles.model_copy(update={**moved, **groups})})
        return replace(blueprint, value=value)


KIND = ServingKind()
