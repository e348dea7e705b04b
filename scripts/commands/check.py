"""`blueprint check`: reads both files, says what is wrong or what was understood; nothing is written or started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blueprints import blueprint
from blueprints.blueprint import Blueprint
from infra import feasibility
from infra.errors import InputError
from infra.fleet import Fleet
from infra.settings import Document
from scripts import console


def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The blueprint's folder.")],
    fleet: Annotated[Path, typer.Option("--fleet", metavar="FILE", help="The fleet file.")] = Path("fleet.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Check a blueprint and the fleet it is to run on; has no side effect."""
    try:
        served, rented = blueprint.read_both(folder, fleet)
        feasibility.require(rented)
    except InputError as error:
        if as_json:
            _print({"ok": False, "mistakes": [mistake.plain() for mistake in error.mistakes]})
            raise typer.Exit(error.exit_code) from None
        raise
    if as_json:
        _print({"ok": True, "mistakes": []})
    else:
        _show(served, rented)


def _print(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2))


def _show(served: Document[Blueprint], rented: Document[Fleet]) -> None:
    """What was understood, a line for each part."""
    for part, text in (*_fleet_lines(rented), *_blueprint_lines(served)):
        console.out.print(f"[bold]{part:<9}[/bold]", end=" ")
        console.out.print(text, markup=False)


def _fleet_lines(rented: Document[Fleet]) -> list[tuple[str, str]]:
    fleet = rented.value
    limit = f", at most {fleet.spend_limit:g} USD/h" if fleet.spend_limit else ""
    pools = [
        ("pool", f"{name}: {pool.size} x {' or '.join(pool.types)} in {_list(fleet.zones_of(pool))}")
        for name, pool in fleet.pools.items()
    ]
    return [("fleet", f"{fleet.name} ({rented.path}): {fleet.region}, {fleet.orchestrator}{limit}"), *pools]


def _blueprint_lines(served: Document[Blueprint]) -> list[tuple[str, str]]:
    blueprint = served.value
    worker, traffic, slo = blueprint.roles.worker, blueprint.traffic, blueprint.slo
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
        ("blueprint", f"{served.path}: {blueprint.pattern}"),
        (
            "model",
            f"{blueprint.model} on {blueprint.engine}, context {blueprint.context}, weights from {blueprint.weights}",
        ),
        ("worker", f"{worker.replicas} x {worker.accelerators} accelerator(s) on the pool {worker.pool}"),
        ("router", blueprint.roles.router.policy),
        (
            "traffic",
            f"{load}, {traffic.input_tokens} tokens in, {traffic.output_tokens} out, {traffic.requests} requests",
        ),
        ("slo", ", ".join([*limits, *least, f"errors at most {slo.errors * 100:g}%"])),
    ]


def _list(zones: tuple[str, ...]) -> str:
    return ", ".join(zones)
