"""`blueprint check`: reads both files and prints their mistakes, or what they resolve to; no side effects."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import typer

from llm_serving import console
from llm_serving.catalog import eks
from llm_serving.cli import arguments
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning, registry
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.workloads import inputs, render
from llm_serving.workloads.serving import measured_prompts, resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Deployment, Role, ServedModel


def check(
    folder: arguments.Folder,
    fleet: arguments.Fleet = arguments.FLEET,
    target: arguments.Target = arguments.TARGET,
    as_json: arguments.AsJson = False,
) -> None:
    """Check a blueprint against its fleet, without side effects.

    Prints every mistake with its line and fix, or what the two files resolve to.
    """
    try:
        blueprint, fleet_document, deployment = _resolve_files(folder, fleet, target)
    except InputError as error:
        if not as_json:
            raise
        print(json.dumps({"ok": False, "mistakes": error.to_list()}, indent=2))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print(json.dumps({"ok": True, "mistakes": [], "deployment": _build_payload(deployment)}, indent=2))
    else:
        _print_summary(blueprint, fleet_document, deployment)


def _resolve_files(
    folder: Path, fleet_file: Path, target: str
) -> tuple[Document[Blueprint], Document[Fleet], Deployment]:
    """Read both files, and resolve and render the deployment without keeping it.

    Raises:
        InputError: with everything that cannot work.
    """
    selected_target = registry.load_target(target)
    blueprint, fleet = inputs.read(folder, fleet_file)
    render.find_template(folder, target)
    environment = selected_target.assume_environment(blueprint.value, fleet.value, cores=len(os.sched_getaffinity(0)))
    measured = measured_prompts.find_measured(blueprint, Path.cwd())
    environment = environment.model_copy(update={"measured": measured})
    directory = DeploymentDir(resolve.resolve_name(blueprint), Path.cwd())
    plan = planning.build_plan(folder, blueprint, fleet, directory, environment)
    return blueprint, fleet, plan.deployment


def _build_payload(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "pattern": deployment.pattern,
        "target": deployment.target,
        "fleet": deployment.fleet,
        "models": [
            {"model": served_model.model, "context": served_model.context, "weight_bytes": served_model.weights.bytes}
            for served_model in deployment.served_models
        ],
        "roles": [
            {
                "name": role.name,
                "pool": role.pool,
                "instance_types": list(role.instance_types),
                "accelerators": role.accelerators,
                "machines": role.nodes,
                "replicas": {"least": role.replicas.min, "most": role.replicas.max},
            }
            for role in deployment.engine_roles
        ],
    }


def _print_summary(blueprint: Document[Blueprint], fleet: Document[Fleet], deployment: Deployment) -> None:
    """Print what the files resolve to, one line for each part."""
    for part, text in (*_describe_fleet(fleet), *_describe_blueprint(blueprint, deployment)):
        console.out.print(f"[bold]{part:<10}[/bold]", end="")
        console.out.print(text, markup=False)


def _describe_fleet(document: Document[Fleet]) -> list[tuple[str, str]]:
    fleet = document.value
    limit = f", at most {fleet.spend_limit:g} USD/h" if fleet.spend_limit else ""
    pools = [
        ("pool", f"{name}: {pool.size} x {' or '.join(pool.types)} in {_format_zones(fleet.get_zones(pool))}")
        for name, pool in fleet.pools.items()
    ]
    has_eks = "eks" in fleet.orchestrators
    support = [("EKS", eks.describe_support(fleet.eks.version, datetime.date.today())[0])] if has_eks else []
    return [("fleet", f"{fleet.name} ({document.path}): {fleet.region}, {fleet.orchestrator}{limit}"), *support, *pools]


def _describe_blueprint(document: Document[Blueprint], deployment: Deployment) -> list[tuple[str, str]]:
    blueprint, traffic, slo = document.value, deployment.traffic, deployment.slo
    load = f"{traffic.users} users" if traffic.users else f"{traffic.arrivals:g} requests/s ({traffic.process})"
    limits = [
        f"{metric.removesuffix('_ms')} {percentile} < {limit:g} ms"
        for metric, limits in (("ttft_ms", slo.ttft_ms), ("itl_ms", slo.itl_ms), ("e2e_ms", slo.e2e_ms))
        for percentile, limit in limits
        if limit is not None
    ]
    minimums = [
        f"at least {value:g} {unit}"
        for value, unit in ((slo.output_tokens_per_s, "output tokens/s"), (slo.requests_per_s, "requests/s"))
        if value is not None
    ]
    return [
        ("blueprint", f"{deployment.name} ({document.path}): {blueprint.pattern} for the target {deployment.target}"),
        *(("model", _describe_model(blueprint, served_model)) for served_model in deployment.served_models),
        *((role.name, _describe_role(role)) for role in deployment.engine_roles),
        ("router", resolve.resolve_policy(blueprint, deployment.environment)),
        (
            "traffic",
            f"{load}, {traffic.input_tokens} tokens in, {traffic.output_tokens} out, {traffic.requests} requests",
        ),
        ("slo", ", ".join([*limits, *minimums, f"errors at most {slo.errors * 100:g}%"])),
    ]


def _describe_model(blueprint: Blueprint, served_model: ServedModel) -> str:
    size = served_model.weights.bytes / 1e9
    gigabytes = f"{size:.{3 if size < 1 else 1}f} GB"
    return f"{served_model.model} on {blueprint.engine}, context {served_model.context}, {gigabytes} of weights"


def _describe_role(role: Role) -> str:
    machines = f" over {role.nodes} machines" if role.nodes > 1 else ""
    types = " or ".join(role.instance_types)
    return f"{role.replicas} x {role.accelerators} accelerator(s) of {types}{machines}, pool {role.pool}"


def _format_zones(zones: tuple[str, ...]) -> str:
    return ", ".join(zones)
