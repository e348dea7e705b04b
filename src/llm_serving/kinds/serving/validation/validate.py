"""Validate a serving deployment: its engines and router as the target of a load."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_serving import loopback
from llm_serving.aws import s3
from llm_serving.catalog import engines, frameworks, instances
from llm_serving.hub import source
from llm_serving.kinds.serving import measurements
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.kinds.serving.price import price_deployment
from llm_serving.services import tasks
from llm_serving.services.models import Weights
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.base import require_slo as require_slo
from llm_serving.validation.load import api_key
from llm_serving.validation.load.load_plan import TargetRole
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.reports.report import Report, WeightLoading
from llm_serving.validation.run import render as render

_UNITS = {"Byte": 1, "Bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def validate(deployment: ServingDeployment, options: ValidationOptions) -> tuple[Report, Path]:
    """Send the deployment's traffic; return the report and its folder, as `run.validate` does."""
    if deployment.door and not options.url and not os.environ.get(api_key.VARIABLE):
        raise InputError(f"{deployment.url}: it asks for a key of a team. Fix: set {api_key.VARIABLE} to one.")
    return run.validate(build_target(deployment, options.logs), options)


def build_target(deployment: ServingDeployment, logs: Path) -> LoadTarget:
    """Return what a load is sent to: the router's URL, and the engines whose metrics and prices the report shows."""
    return LoadTarget(
        name=deployment.name,
        target=deployment.target,
        url=deployment.url,
        models=deployment.model_names,
        task=deployment.task,
        traffic=deployment.traffic,
        slo=deployment.slo,
        admitted=deployment.admitted,
        engine=deployment.engine,
        framework=deployment.framework,
        roles=tuple(_build_role(role, deployment) for role in deployment.engine_roles),
        router=deployment.router.name,
        router_requests=deployment.router.metrics.get("requests", ""),
        metrics_urls=deployment.metrics_urls,
        kv_block=max(role.kv_block for role in deployment.engine_roles),
        price=price_deployment(deployment),
        capacity_key=measurements.compute_key(deployment),
        images={role.name: role.image for role in deployment.roles if role.image},
        settings=_collect_settings(deployment),
        weights=_read_weight_loading(deployment, logs),
        versions=_read_versions(deployment),
        emulated=deployment.emulated,
        remarks=tuple(list_remarks(deployment)),
    )


def _build_role(role: Role, deployment: ServingDeployment) -> TargetRole:
    return TargetRole(
        name=role.name,
        replicas=role.replicas,
        instances=tuple(service.name for service in deployment.list_services(role)),
        answers=role in deployment.answering_roles,
        accelerators=_describe_accelerators(role, deployment) if role in deployment.mixed_roles else "",
        weight=role.weight,
    )


def _describe_accelerators(role: Role, deployment: ServingDeployment) -> str:
    count = role.nodes * role.resources.accelerators
    if not count or deployment.environment.conventions.is_local:
        return "CPU"
    accelerators = instances.find(role.instance_types[0]).accelerators
    return f"{count} x {accelerators.name}" if accelerators else "CPU"


def list_remarks(deployment: ServingDeployment) -> Iterator[str]:
    """Yield caveats of the deployment itself, such as models whose memory is not computed."""
    for role in deployment.engine_roles:
        if role.sleepers:
            yield (
                f"{role.describe_models()} take turns on the same accelerators: latencies have the wait for a turn, "
                "the engine's too."
            )
        if price_deployment(deployment) and role.replicas.min < role.replicas.max:
            yield (
                f"The cost counts {max(1, role.replicas.min)} of up to {role.replicas.max} replicas of {role.name}: "
                "it was more where others came during the load."
            )
    if deployment.unused_keys:
        yield tasks.describe_unused(deployment.task, deployment.unused_keys)
    for served_model in deployment.served_models:
        if not served_model.weights.memory_computed:
            name = served_model.model
            yield f"Memory of {name}: not computed, for its kind is unknown here; its weights and a tenth had room."


def _collect_settings(deployment: ServingDeployment) -> dict[str, Any]:
    main_model = deployment.served_models[0]
    tuning = deployment.tuning.model_dump(mode="json", exclude_defaults=True)
    roles = {role.name: len(deployment.list_services(role)) for role in deployment.engine_roles}
    return {
        "pattern": deployment.pattern,
        "fleet": deployment.fleet,
        "engine": deployment.engine,
        **({"task": deployment.task} if deployment.is_pooled else {}),
        "model": main_model.model,
        "served_model": main_model.name,
        **({"models": list(deployment.model_names)} if len(deployment.model_names) > 1 else {}),
        "context": main_model.context,
        "replicas": len(deployment.workers),
        "accelerators": sum(role.accelerators * max(1, role.replicas.min) for role in deployment.engine_roles),
        **({"tuning": tuning} if tuning else {}),
        **({"roles": roles} if len(roles) > 1 else {}),
        **({"instances": placed} if (placed := _list_instances(deployment)) else {}),
    }


def _list_instances(deployment: ServingDeployment) -> dict[str, dict[str, Any]]:
    """Return where the replicas of each role run, for roles with a fixed number of them on rented instances."""
    if deployment.environment.conventions.is_local or deployment.environment.emulated:
        return {}
    return {
        role.name: {
            "type": role.instance_types[0],
            "replicas": role.replicas.max,
            **role.parallelism.model_dump(mode="json"),
        }
        for role in deployment.engine_roles
        if role.instance_types and role.replicas.min == role.replicas.max
    }


def _read_weight_loading(deployment: ServingDeployment, logs: Path) -> WeightLoading:
    main_model = deployment.served_models[0]
    roles = [role for role in deployment.engine_roles if role.served_model == main_model]
    names = [service.name for role in roles for service in deployment.list_services(role)]
    streaming = engines.load_engines()[deployment.engine].streaming
    logs_of_replicas = [logs / f"{name}.log" for name in names]
    loading = parse_weight_loading(main_model.weights, logs_of_replicas, streaming.log_line if streaming else "")
    environment = deployment.environment

    def open_bucket() -> s3.Bucket:
        location = s3.parse_location(main_model.weights.uri)
        return s3.Bucket(location, endpoint=environment.s3_endpoint, env=environment.env)

    record = source.find(open_bucket)
    return loading.model_copy(update={"commit": record.commit if record else None})


def parse_weight_loading(weights: Weights, logs: Iterable[Path], line: str) -> WeightLoading:
    """Return what one replica read, and how long the slowest took; null if no log has the line.

    The log rounds the bytes to a tenth of its unit.

    Args:
        line: `streaming.log_line` of the engine's row; empty if it writes none.
    """
    loads = [load for log in logs if line and (load := _parse_last_load(log, line))]
    return WeightLoading(
        source=weights.uri,
        bytes=max((size for size, _ in loads), default=None),
        seconds=max((seconds for _, seconds in loads), default=None),
        random=weights.random,
    )


def _parse_last_load(log: Path, line: str) -> tuple[int, float] | None:
    if not log.is_file():
        return None
    matches = re.findall(line, log.read_text(encoding="utf-8", errors="replace"))
    if not matches:
        return None
    size, unit, seconds = matches[-1]
    return round(float(size) * _UNITS[unit]), float(seconds)


def _read_versions(deployment: ServingDeployment) -> Mapping[str, str]:
    """Return a framework's version and that of the engine that it pins; else of an engine here, by its own API."""
    framework = frameworks.load_frameworks()[deployment.framework]
    if pair := framework.engines.get(deployment.engine):
        return {deployment.framework: framework.version, deployment.engine: pair.version}
    versions: dict[str, str] = {}
    if deployment.environment.conventions.is_local:
        engine = deployment.workers[0]
        version_url = f"http://{engine.host}:{engine.port}/version"
        with (
            contextlib.suppress(OSError, ValueError, KeyError),
            loopback.OPENER.open(version_url, timeout=5) as response,
        ):
            versions[deployment.engine] = str(untrusted_json.parse(response.read())["version"])
    return versions
