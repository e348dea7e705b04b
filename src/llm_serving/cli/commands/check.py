"""`blueprint check`: reads both files, says what is wrong or what was understood; nothing is written or started."""

from __future__ import annotations

import datetime
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llm_serving import console
from llm_serving.catalog import eks
from llm_serving.cli import arguments
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError
from llm_serving.workloads.serving.blueprint import Blueprint

if TYPE_CHECKING:
    from llm_serving.workloads.serving.deployment import Deployment, Role, Served


def check(
    folder: arguments.Folder,
    fleet: arguments.Fleet = arguments.FLEET,
    target: arguments.Target = arguments.LOCAL,
    as_json: arguments.AsJson = False,
) -> None:
    """Check a blueprint and the fleet it is to run on; has no side effect."""
    try:
        served, rented, deployment = _understand(folder, fleet, target)
    except InputError as error:
        if not as_json:
            raise
        print(json.dumps({"ok": False, "mistakes": error.plain()}, indent=2))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print(json.dumps({"ok": True, "mistakes": [], "deployment": _plain(deployment)}, indent=2))
    else:
        _show(served, rented, deployment)


def _understand(folder: Path, fleet: Path, target: str) -> tuple[Document[Blueprint], Document[Fleet], Deployment]:
    """Both files, and the deployment that would follow; its template is filled in too, and thrown away.

    Raises:
        InputError: with all that cannot work.
    """
    from llm_serving.workloads import inputs, render
    from llm_serving.workloads.serving import measured_prompts, resolve
    from llm_serving.workloads.serving.deployment import Place

    served, rented = inputs.read(folder, fleet)
    template = render.template(folder, target)
    # What a run of the target would find out by starting something stays open here: ports, the bucket, folders.
    cores = len(os.sched_getaffinity(0))
    place = Place.model_construct(
        target=target,
        region=rented.value.region,
        bucket="",
        ports=defaultdict(int),
        cores=cores,
        measured=measured_prompts.find(served, Path.cwd()),
    )
    deployment = resolve.resolve(served, rented, place)
    render.text(deployment, template)
    return served, rented, deployment


def _plain(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "pattern": deployment.pattern,
        "target": deployment.target,
        "fleet": deployment.fleet,
        "models": [
            {"model": served.model, "context": served.context, "weight_bytes": served.weights.bytes}
            for served in deployment.models
        ],
        "roles": [
            {
                "name": role.name,
                "pool": role.pool,
                "instance_types": list(role.instance_types),
                "accelerators": role.accelerators,
                "machines": role.machines,
                "replicas": {"least": role.count.least, "most": role.count.most},
            }
            for role in deployment.engines
        ],
    }


def _show(served: Document[Blueprint], rented: Document[Fleet], deployment: Deployment) -> None:
    """What was understood, a line for each part."""
    for part, text in (*_fleet_lines(rented), *_blueprint_lines(served, deployment)):
        console.out.print(f"[bold]{part:<10}[/bold]", end="")
        console.out.print(text, markup=False)


def _fleet_lines(rented: Document[Fleet]) -> list[tuple[str, str]]:
    fleet = rented.value
    limit = f", at most {fleet.spend_limit:g} USD/h" if fleet.spend_limit else ""
    pools = [
        ("pool", f"{name}: {pool.size} x {' or '.join(pool.types)} in {_list(fleet.zones_of(pool))}")
        for name, pool in fleet.pools.items()
    ]
    known = "eks" in fleet.orchestrators
    support = [("EKS", eks.support(fleet.eks.version, datetime.date.today())[0])] if known else []
    return [("fleet", f"{fleet.name} ({rented.path}): {fleet.region}, {fleet.orchestrator}{limit}"), *support, *pools]


def _blueprint_lines(served: Document[Blueprint], deployment: Deployment) -> list[tuple[str, str]]:
    from llm_serving.workloads.serving import resolve

    blueprint, traffic, slo = served.value, deployment.traffic, deployment.slo
    load = f"{traffic.users} users" if traffic.users else f"{traffic.arrivals:g} requests/s ({traffic.process})"
    limits = [
        f"{metric.removesuffix('_ms')} {percentile} < {limit:g} ms"
        for metric, limits in (("ttft_ms", slo.ttft_ms), ("itl_ms", slo.itl_ms), ("e2e_ms", slo.e2e_ms))
        for percentile, limit in limits
        if limit is not None
    ]
    least = [
        f"at least {value:g} {unit}"
        for value, unit in ((slo.output_tokens_per_s, "output tokens/s"), (slo.requests_per_s, "requests/s"))
        if value is not None
    ]
    return [
        ("blueprint", f"{deployment.name} ({served.path}): {blueprint.pattern} for the target {deployment.target}"),
        *(("model", _model(blueprint, one)) for one in deployment.models),
        *((role.name, _role(role)) for role in deployment.engines),
        ("router", resolve.policy(blueprint, deployment.place)),
        (
            "traffic",
            f"{load}, {traffic.input_tokens} tokens in, {traffic.output_tokens} out, {traffic.requests} requests",
        ),
        ("slo", ", ".join([*limits, *least, f"errors at most {slo.errors * 100:g}%"])),
    ]


def _model(blueprint: Blueprint, served: Served) -> str:
    size = served.weights.bytes / 1e9
    gigabytes = f"{size:.{3 if size < 1 else 1}f} GB"
    return f"{served.model} on {blueprint.engine}, context {served.context}, {gigabytes} of weights"


def _role(role: Role) -> str:
    machines = f" over {role.machines} machines" if role.machines > 1 else ""
    types = " or ".join(role.instance_types)
    return f"{role.count} x {role.accelerators} accelerator(s) of {types}{machines}, pool {role.pool}"


def _list(zones: tuple[str, ...]) -> str:
    return ", ".join(zones)
