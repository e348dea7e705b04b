"""The EKS stack: cluster, add-ons, node groups, and what Karpenter needs."""

from __future__ import annotations

from typing import Any

from infra.constructs import controllers, eks_add_ons, eks_cluster, model_reader, network, node_groups, node_repair
from infra.constructs.account import account
from infra.constructs.capacity import capacity
from infra.constructs.efa_group import efa_group
from infra.constructs.karpenter import karpenter
from infra.constructs.role import rights
from infra.stacks import stack as stacks
from llm_serving.catalog import eks, instances
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document

NAME = "eks"


def add(app: Any, document: Document[Fleet]) -> None:
    """Adds the stack to the app. Outputs: cluster_name, cluster_endpoint, kubernetes_version, end_of_standard_support,
    node_groups (names).
    """
    fleet, catalogue = document.value, instances.load()
    stack = stacks.new(app, NAME, document)
    here, where = account(stack, fleet), network.found(stack, fleet)
    pools = [group for group in groups.groups(fleet, catalogue) if group.orchestrator == "eks"]
    cluster = eks_cluster.cluster(
        stack,
        fleet,
        subnet_ids=list(where.private_subnets.values()),
        account=here,
        functions=[node_repair.NAME],
    )
    efa = efa_group(stack, fleet=fleet.name, vpc_id=where.vpc_id) if any(group.efa for group in pools) else None
    place = node_groups.Place(
        fleet=fleet,
        account=here,
        cluster=cluster.resource,
        security_group_id=cluster.resource.vpc_config.cluster_security_group_id,
        node_role=node_groups.node_role(stack, "node", fleet, here),
        subnets=where.private_subnets,
        efa_group=efa,
        before=[
            *eks_add_ons.add(stack, fleet, cluster=cluster.resource, account=here, system=None),
            *rights(stack, "node"),
        ],
    )
    first = node_groups.system(fleet, catalogue)
    system = node_groups.node_group(stack, place, first)
    eks_add_ons.add(stack, fleet, cluster=cluster.resource, account=here, system=system)
    kept = [group for group in pools if group.kind == "node-group"]
    made = [(first, system), *((group, node_groups.node_group(stack, place, group)) for group in kept)]
    node_repair.capped(stack, fleet, made, key=cluster.key, account=here)
    started = [group for group in pools if group.kind == "karpenter"]
    if started:
        karpenter(stack, fleet, cluster=cluster.resource, encryption=cluster.key, account=here)
    for group in started:
        capacity(stack, fleet, group, account=here)
    controllers.load_balancers(stack, fleet, cluster=cluster.resource, account=here)
    controllers.autoscaler(stack, fleet, cluster=cluster.resource, account=here)
    model_reader.serving_identity(stack, fleet, cluster=cluster.resource, account=here)
    _outputs(stack, fleet, cluster.resource, [group.name for group in kept])


def _outputs(stack: Any, fleet: Fleet, cluster: Any, kept: list[str]) -> None:
    end = eks.END_OF_STANDARD_SUPPORT[fleet.eks.version].isoformat()
    stacks.output(stack, "cluster_name", cluster.name, "The cluster")
    stacks.output(stack, "cluster_endpoint", cluster.endpoint, "Where its API answers")
    stacks.output(stack, "kubernetes_version", fleet.eks.version, "Kubernetes version")
    stacks.output(stack, "end_of_standard_support", end, "Day from which the version costs more")
    stacks.output(stack, "node_groups", ["system", *kept], "Managed node groups")
