"""Takes a fleet away in the reverse of the order that made it, and what costs the most first.

What Karpenter started, then load balancers and charts, then the Auto Scaling and node groups of the pools, then the
rest of their stacks, then network and storage. A bucket or registry with something in it stays, unless it is said that
its data may go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving import console
from llm_serving.aws import session as clients
from llm_serving.aws.session import Aws
from llm_serving.catalog import instances
from llm_serving.fleet import names
from llm_serving.fleet.checks import listed
from llm_serving.operations import add_ons as platform
from llm_serving.operations import checkpoints, cluster, non_empty_stores
from llm_serving.operations.apply import GRACE_S, LIMIT_S
from llm_serving.operations.context import Site, State, states, strangers
from llm_serving.operations.non_empty_stores import Held
from llm_serving.settings.errors import AnswerIsNo, Unavailable
from llm_serving.terraform import runner

STORAGE = "storage"
"""The stack whose buckets and registries hold data."""

EKS, ECS = "eks", "ecs"

_MACHINES = ("aws_autoscaling_group", "aws_eks_node_group")
"""What runs the pools' machines, by kind of resource."""

_SYSTEM = "system"
"""Of EKS's node groups the one that add-ons stand on: it goes with the cluster."""


@dataclass(frozen=True)
class Going:
    """What a destroy would take."""

    site: Site
    states: Mapping[str, State]
    """Of the stacks that hold something."""

    held: Sequence[Held]
    """What buckets and registries hold."""

    karpenter: Sequence[str]
    """Ids of machines that Terraform does not know."""

    services: Sequence[str]
    """Services on the ECS cluster, which keep its capacity providers."""

    strangers: Sequence[str]
    """Stacks that the state holds, and that the fleet file does not make."""

    with_data: bool

    @property
    def stays(self) -> bool:
        """Whether the storage stack stays, for what it holds."""
        return bool(self.held) and not self.with_data

    @property
    def stacks(self) -> list[str]:
        """Those that go, in the order of going."""
        there = [name for wave in reversed(self.site.waves) for name in wave if name in self.states]
        return [name for name in there if not (name == STORAGE and self.stays)]


def look(site: Site, *, with_data: bool) -> Going:
    """What there is to take away; changes nothing.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    with console.step(f"See what there is of {site.fleet.name} at {site.at}") as step:
        aws = Aws(site.fleet.region)
        there = {name: state for name, state in states(site).items() if state.resources}
        outputs = there[STORAGE].outputs if STORAGE in there else {}
        going = Going(
            site,
            there,
            non_empty_stores.look(aws, outputs, site.fleet.name),
            cluster.started_by_karpenter(aws, site.fleet) if EKS in there else (),
            _services(aws, site) if ECS in there else (),
            strangers(site),
            with_data,
        )
        step.note = ", ".join(f"{name} {len(state.resources)}" for name, state in there.items()) or "nothing"
    return going


def destroy(going: Going) -> None:
    """Takes it away. Run again after it was broken off, it goes on.

    Raises:
        AnswerIsNo: machines still run at the end.
        Unavailable: the cluster cannot be reached while machines of Karpenter's run in it.
        CommandFailed: Terraform, kubectl or helm failed.
    """
    site = going.site
    if EKS in going.stacks:
        _end_what_the_cluster_made(going)
    base, after = ({name: site.folders[name] for name in wave if name in going.stacks} for wave in site.waves)
    _destroy_machines(site, after)
    _destroy(site, after)
    if STORAGE in base:
        for one in going.held:
            non_empty_stores.empty(Aws(site.fleet.region), one)
    _destroy(site, base)
    (site.data / checkpoints.FILE).unlink(missing_ok=True)  # what it tells of is undone
    cluster.require_none_left(Aws(site.fleet.region), site.fleet)


def _services(aws: Aws, site: Site) -> list[str]:
    from botocore.exceptions import ClientError

    with clients.refusals():
        pages = aws.client("ecs").get_paginator("list_services").paginate(cluster=names.cluster(site.fleet))
        try:
            return [arn.rsplit("/", 1)[-1] for page in pages for arn in page["serviceArns"]]
        except ClientError as error:
            if clients.code(error) != "ClusterNotFoundException":
                raise
            return []


def require_alone(going: Going) -> None:
    """Sees that nothing stands on what goes: no blueprint on ECS, no stack that this fleet file does not make.

    Raises:
        AnswerIsNo: something does; says how to take it away.
    """
    if going.services:
        raise AnswerIsNo(
            f"{listed(going.services)} still runs on the cluster {names.cluster(going.site.fleet)}, and keeps its "
            "machines. Run `blueprint destroy DIR --target ecs` first"
        )
    if going.strangers:
        raise AnswerIsNo(
            f"the state also holds {listed(going.strangers)}, which {going.site.document.path} does not make and which "
            "would outlive it. Destroy a blueprint's stack with `blueprint destroy`; write the orchestrator back that "
            "made a cluster's"
        )


def _end_what_the_cluster_made(going: Going) -> None:
    """Machines first, then load balancers, then charts."""
    site = going.site
    if site.endpoint:
        console.err.print("  the embedded EKS starts no nodes, so there is no Karpenter, load balancer or chart to end")
        return
    if not any(address.startswith("aws_eks_cluster.") for address in going.states[EKS].resources):
        return
    try:
        with console.step(f"Reach the cluster {site.fleet.name}"):
            reached = cluster.connect(site.fleet, site.data)
    except (Unavailable, console.CommandFailed) as error:
        balancers = cluster.load_balancers(Aws(site.fleet.region), site.fleet)
        if going.karpenter or balancers:
            raise Unavailable(
                f"{listed([*going.karpenter, *balancers])} would outlive the cluster, which made "
                f"{'it' if len([*going.karpenter, *balancers]) == 1 else 'them'}: {error}"
            ) from None
        console.err.print(f"  nothing is there that the cluster made, so it is not needed: {error}", markup=False)
        return
    with console.step("End the machines that Karpenter started"):
        cluster.end_machines(reached)
    with console.step("End load balancers"):
        cluster.end_load_balancers(reached)
    folder = Path("rendered") / site.fleet.name / "platform"
    removals = platform.removals(site.fleet, instances.load(), folder)
    platform.run(removals, folder, doing="Remove", environment=reached.environment)


def _destroy_machines(site: Site, folders: Mapping[str, Path]) -> None:
    """The pools' machines, before anything else of their stacks."""
    for name, folder in folders.items():
        targets = [f"-target={address}" for address in _machines(folder)]
        if targets:
            with console.step(f"Destroy the machines of {name}") as step:
                _run(site, {name: folder}, targets, step)


def _machines(folder: Path) -> list[str]:
    made = json.loads((folder / "cdk.tf.json").read_text()).get("resource", {})
    return [
        f"{kind}.{name}"
        for kind in _MACHINES
        for name, settings in made.get(kind, {}).items()
        if settings.get("node_group_name") != _SYSTEM
    ]


def _destroy(site: Site, folders: Mapping[str, Path]) -> None:
    if folders:
        with console.step(f"Destroy {', '.join(folders)} at {site.at}") as step:
            _run(site, folders, (), step)


def _run(site: Site, folders: Mapping[str, Path], targets: Sequence[str], step: console.Step) -> None:
    runner.run(
        site.program,
        folders,
        ("destroy", "-auto-approve", "-input=false", *targets),
        timeout_s=LIMIT_S,
        grace_s=GRACE_S,
        note=lambda note: setattr(step, "note", note),
    )
    step.note = "done"
