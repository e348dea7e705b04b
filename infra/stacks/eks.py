"""The EKS stack: cluster, add-ons, node groups, and what Karpenter needs; or what an existing cluster lacks."""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import App
from infra.constructs import (
    controllers,
    eks_add_ons,
    eks_cluster,
    iam,
    model_reader,
    network,
    node_group_settings,
    node_groups,
)
from infra.constructs.alarm import add_topic_rule
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import list_policies
from infra.constructs.karpenter import add_karpenter
from infra.constructs.machines import add_capacity, add_efa_group
from infra.constructs.network import Network
from infra.constructs.task_load_balancer import CERTIFICATE_DAYS
from infra.stacks import base
from llm_serving.catalog import eks, signals
from llm_serving.fleet import groups, log_outputs, node_template
from llm_serving.fleet.log_outputs import CLOUDWATCH
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.system_group import build_system_group
from llm_serving.settings.document import Document

NAME = "eks"
NEEDS = ("network",)


def is_enabled(fleet: Fleet) -> bool:
    """Whether a pool of the fleet runs on EKS."""
    return NAME in fleet.orchestrators


def add(app: App, document: Document[Fleet]) -> None:
    """Add the stack to the app. Outputs: cluster_name, cluster_endpoint, kubernetes_version, and of a new cluster
    end_of_standard_support and node_groups (names).
    """
    fleet = document.value
    stack = base.create_stack(app, NAME, document)
    if fleet.eks.cluster:
        _use_cluster(stack, fleet.eks.cluster)
        return
    fleet_network = network.find_network(stack)
    eks_groups = [group for group in groups.resolve_all(fleet) if group.orchestrator == "eks"]
    cluster, key = eks_cluster.add_cluster(
        stack,
        vpc_id=fleet_network.vpc_id,
        subnet_ids=list(fleet_network.private_subnets.values()),
        functions=[node_group_settings.NAME],
        log_groups={"ContainerLogs": log_outputs.format_group_name(fleet)} if fleet.logs.to == CLOUDWATCH else {},
    )
    context = _build_context(stack, fleet_network, cluster, efa=any(group.efa for group in eks_groups))
    system_group = build_system_group(fleet)
    system_node_group = node_groups.add_node_group(context, system_group, is_rooted=True)
    eks_add_ons.add(stack, cluster=cluster, system=system_node_group)
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
    model_reader.add_engine_role(stack, cluster=cluster)
    _add_certificate_rule(stack)
    _add_outputs(stack, cluster, [group.name for group in managed_groups])


def _use_cluster(stack: FleetStack, name: str) -> None:
    """Look an existing cluster up, and give its engines their role."""
    cluster = aws.data_aws_eks_cluster.DataAwsEksCluster(stack, "cluster", name=name)
    model_reader.add_engine_role(stack, cluster=cluster)
    _add_certificate_rule(stack)
    _add_cluster_outputs(stack, cluster, cluster.version)


def _build_context(
    stack: FleetStack, fleet_network: Network, cluster: aws.eks_cluster.EksCluster, *, efa: bool
) -> node_groups.NodeGroupContext:
    """Add what all node groups share: the EFA security group, the role and the add-ons that nodes need to join."""
    efa_group = add_efa_group(stack, vpc_id=fleet_network.vpc_id) if efa else None
    return node_groups.NodeGroupContext(
        stack=stack,
        cluster=cluster,
        security_group_id=cluster.vpc_config.cluster_security_group_id,
        node_role=node_groups.add_node_role(stack, "node"),
        subnets=fleet_network.private_subnets,
        efa_group=efa_group,
        dependencies=[*eks_add_ons.add(stack, cluster=cluster, system=None), *list_policies(stack, "node")],
    )


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


def _add_outputs(stack: FleetStack, cluster: aws.eks_cluster.EksCluster, group_names: list[str]) -> None:
    end_of_support = eks.END_OF_STANDARD_SUPPORT[stack.fleet.eks.version].isoformat()
    _add_cluster_outputs(stack, cluster, stack.fleet.eks.version)
    base.add_output(stack, "end_of_standard_support", end_of_support, "Day from which the version costs more")
    base.add_output(stack, "node_groups", ["system", *group_names], "Managed node groups")


def _add_cluster_outputs(stack: FleetStack, cluster: iam.Cluster, version: str) -> None:
    base.add_output(stack, "cluster_name", cluster.name, "The cluster")
    base.add_output(stack, "cluster_endpoint", cluster.endpoint, "Where its API answers")
    base.add_output(stack, "kubernetes_version", version, "Kubernetes version")
