"""The EKS stack: cluster, add-ons, node groups, and what Karpenter needs; or what an existing cluster lacks."""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import App
from infra.constructs import controllers, eks_cluster, iam, model_reader, network, node_group_settings, node_groups
from infra.constructs.alarm import add_topic_rule
from infra.constructs.controllers import add_karpenter
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.machines import add_capacity, add_efa_group
from infra.constructs.task_load_balancer import CERTIFICATE_DAYS
from infra.stacks import base
from llm_serving.catalog import eks, signals
from llm_serving.fleet import groups, log_outputs, node_template
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.system_group import build_system_group
from llm_serving.settings.document import Document

NAME = "eks"
NEEDS = ("network",)


def is_enabled(fleet: Fleet) -> bool:
    """Return whether a pool of the fleet runs on EKS."""
    return NAME in fleet.orchestrators


def add(app: App, document: Document[Fleet]) -> None:
    """Add the stack to the app. Outputs: cluster_name, cluster_endpoint, kubernetes_version, and of a new cluster
    end_of_standard_support and node_groups (names).
    """
    fleet = document.value
    stack = base.create_stack(app, NAME, document)
    cluster: iam.Cluster
    if fleet.eks.cluster:
        cluster = aws.data_aws_eks_cluster.DataAwsEksCluster(stack, "cluster", name=fleet.eks.cluster)
        version, own_groups = cluster.version, None
    else:
        cluster, own_groups = _add_cluster(stack)
        version = fleet.eks.version
    model_reader.add_engine_role(stack, cluster=cluster)
    _add_certificate_rule(stack)
    base.add_output(stack, "cluster_name", cluster.name, "The cluster")
    base.add_output(stack, "cluster_endpoint", cluster.endpoint, "Where its API answers")
    base.add_output(stack, "kubernetes_version", version, "Kubernetes version")
    if own_groups:
        end_of_support = eks.END_OF_STANDARD_SUPPORT[version].isoformat()
        base.add_output(stack, "end_of_standard_support", end_of_support, "Day from which the version costs more")
        base.add_output(stack, "node_groups", own_groups, "Managed node groups")


def _add_cluster(stack: FleetStack) -> tuple[aws.eks_cluster.EksCluster, list[str]]:
    """Add a cluster with all that is in it; return it and the names of its node groups."""
    fleet, fleet_network = stack.fleet, network.find_network(stack)
    eks_groups = [group for group in groups.resolve_all(fleet) if group.orchestrator == "eks"]
    cluster, key = eks_cluster.add_cluster(
        stack,
        vpc_id=fleet_network.vpc_id,
        subnet_ids=fleet_network.subnets,
        functions=[node_group_settings.NAME],
        # Also where `logs.to` is another by now: what the group holds stays readable.
        log_groups={"ContainerLogs": log_outputs.format_group_name(fleet)},
    )
    has_efa = any(group.efa for group in eks_groups)
    node_role = node_groups.add_node_role(stack, "node")
    context = node_groups.NodeGroupContext(
        stack=stack,
        cluster=cluster,
        efa_group=add_efa_group(stack, vpc_id=fleet_network.vpc_id) if has_efa else None,
        security_group_id=cluster.vpc_config.cluster_security_group_id,
        node_role=node_role,
        subnets=fleet_network.private_subnets,
        dependencies=[*eks_cluster.add_add_ons(stack, cluster=cluster, system=None), *iam.list_policies(node_role)],
    )
    system_group = build_system_group(fleet)
    system_node_group = node_groups.add_node_group(context, system_group, is_rooted=True)
    eks_cluster.add_add_ons(stack, cluster=cluster, system=system_node_group)
    managed_groups = [group for group in eks_groups if group.kind == "node-group"]
    groups_with_resources = [
        (system_group, system_node_group),
        *(
            (group, node_groups.add_node_group(context, group, node_template.build_tags(group)))
            for group in managed_groups
        ),
    ]
    node_group_settings.apply_settings(stack, groups_with_resources, key=key)
    karpenter_groups = [group for group in eks_groups if group.kind == "karpenter"]
    if karpenter_groups:
        add_karpenter(stack, cluster=cluster, kms_key=key)
    for group in karpenter_groups:
        add_capacity(stack, group)
    controllers.add_roles(stack, cluster=cluster, vpc_id=fleet_network.vpc_id)
    if fleet.logs.to:
        controllers.add_log_collector(stack, cluster=cluster, key=key)
    return cluster, ["system", *(group.name for group in managed_groups)]


def _add_certificate_rule(stack: FleetStack) -> None:
    """Let the topic hear of every certificate that ends soon: charts make the load balancers here, and no stack knows
    their certificates.

    Source: ACM user guide, "Amazon EventBridge support for ACM", 2026-11: such events come daily,
    with the days in a field of the metric's name.
    """
    signal = signals.load()["certificate-days"]
    pattern = {
        "source": ["aws.acm"],
        "detail-type": ["ACM Certificate Approaching Expiration"],
        "detail": {signal.name: [{"numeric": ["<=", CERTIFICATE_DAYS]}]},
    }
    description = f"A certificate of the account ends within {CERTIFICATE_DAYS} days"
    add_topic_rule(
        stack,
        "certificate-ends",
        description,
        pattern,
        detail=f"<name>, in <days> days. To do: {signal.action}; <arn>",
        fields={"name": "$.detail.CommonName", "days": f"$.detail.{signal.name}", "arn": "$.resources[0]"},
    )
