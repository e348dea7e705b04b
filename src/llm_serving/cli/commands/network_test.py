"""`blueprint fleet test-network`: nccl-tests between instances of a pool, and whether EFA carries them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from llm_serving import console
from llm_serving.catalog import instances
from llm_serving.fleet import groups
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet as FleetSettings
from llm_serving.operations import network_test
from llm_serving.operations.network_test.output import Verdict
from llm_serving.options import confirm
from llm_serving.options.arguments import FLEET, AsJson, Fleet, Yes
from llm_serving.services import inputs
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, InputError

MIN_NODES = 2
_MINUTE_S = 60

Pool = Annotated[str, typer.Argument(metavar="POOL", help="A pool with `efa: on`.")]
Nodes = Annotated[int, typer.Option("--nodes", min=MIN_NODES, help="Instances to run on.")]
Minutes = Annotated[int, typer.Option("--minutes", min=5, help="Time limit, including the start of the instances.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Evaluate an output of all_reduce_perf; run nothing.")
]


def test_network(
    pool: Pool,
    fleet: Fleet = FLEET,
    nodes: Nodes = MIN_NODES,
    minutes: Minutes = 40,
    output: OutputFile = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run nccl-tests between instances of a pool, and check that EFA carries them.

    Takes all accelerators of the instances. Exits 1 where NCCL fell back to TCP, or the bandwidth is below what the
    instance type reaches.
    """
    document = inputs.read_fleet(fleet)
    group = _select_group(document, pool, nodes)
    if output:
        text = _read_output(output)
    else:
        confirm.ask(_describe_run(document.value, group, nodes, minutes), yes)
        text = network_test.run(document.value, group, nodes=nodes, limit_s=minutes * _MINUTE_S)
    verdict = network_test.judge(text, group)
    payload = {"healthy": verdict.healthy, **dataclasses.asdict(verdict)}
    console.print_rows(payload, Text(_describe_verdict(verdict, group)), as_json=as_json)
    if verdict.failures:
        raise CheckFailed(f"the network of pool {pool} is not healthy: {'; '.join(verdict.failures)}")


def _select_group(document: Document[FleetSettings], name: str, nodes: int) -> Group:
    """Return the instances of the pool's first choice."""
    fleet = document.value
    if name not in fleet.pools:
        raise InputError(f"POOL: {name}: {document.path} has no such pool. Fix: use one of {', '.join(fleet.pools)}.")
    pool, group = fleet.pools[name], groups.resolve_pool(fleet, name)[0]
    accelerators = instances.load()[group.types[0]].accelerators
    if not group.efa:
        raise InputError(
            [document.build_mistake(("pools", name), name, "nccl-tests needs EFA", "set efa: on in the pool")]
        )
    if not accelerators or accelerators.kind != "gpu":
        reason = f"nccl-tests measures NVIDIA GPUs, and {group.types[0]} has none"
        fix = "choose a pool with GPUs; for Neuron devices, run AWS's nccom-test on the instances"
        raise InputError([document.build_mistake(("pools", name, "types"), list(pool.types), reason, fix)])
    if group.max_size < nodes:
        reason = f"{nodes} instances are to be tested, and the pool has at most {group.max_size}"
        fix = "choose a larger pool, or fewer --nodes"
        raise InputError([document.build_mistake(("pools", name, "size"), str(pool.size), reason, fix)])
    return group


def _read_output(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}. Fix: use the file with the output.") from None


def _describe_run(fleet: FleetSettings, group: Group, nodes: int, minutes: int) -> str:
    price = instances.load()[group.types[0]].prices.get(fleet.region)
    cost = f" for {nodes * price.usd_h:,.2f} USD/h on demand" if price else ""
    return f"Run nccl-tests on {nodes} x {group.types[0]}{cost}, for up to {minutes} minutes?"


def _describe_verdict(verdict: Verdict, group: Group) -> str:
    lowest = (
        f"healthy from {verdict.min_gb_s:.0f}"
        if verdict.min_gb_s is not None
        else f"not judged: no result of {group.types[0]} was published"
    )
    return (
        f"{group.types[0]}: {verdict.bus_gb_s:.1f} GB/s of bus bandwidth at {verdict.message_bytes:,} bytes "
        f"({lowest}); network: {verdict.network}"
    )
