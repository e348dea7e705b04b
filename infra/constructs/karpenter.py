"""What Karpenter needs of AWS: a role for its controller, one for its nodes, and word of instances about to go."""

from __future__ import annotations

import json
from typing import Any

from infra.bindings import aws
from infra.constructs import pod_identity, policy
from infra.constructs.account import Account
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.node_groups import add_node_role
from infra.constructs.policy import Statement, allow
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet

NAMESPACE = "kube-system"
SERVICE_ACCOUNT = "karpenter"

_MESSAGE_RETENTION_S = 300
"""A warning is two minutes long; an older message is of no use."""

EVENTS = {
    "health": ("aws.health", "AWS Health Event"),
    "spot": ("aws.ec2", "EC2 Spot Instance Interruption Warning"),
    "rebalance": ("aws.ec2", "EC2 Instance Rebalance Recommendation"),
    "state": ("aws.ec2", "EC2 Instance State-change Notification"),
    "reservation": ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
}
"""Source and kind of each event. Source: karpenter.sh/v1.14/reference/cloudformation, 2026-11."""


def add_karpenter(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster, kms_key: aws.kms_key.KmsKey) -> None:
    """Add the roles, the queue and its rules. Karpenter itself comes as a chart, its NodePools as manifests."""
    node_iam_role = add_node_role(stack, names.KARPENTER_NODE_PURPOSE)
    # Made here and not by Karpenter, which then needs no right to make any.
    aws.iam_instance_profile.IamInstanceProfile(
        stack,
        "karpenter-profile",
        name=names.format_role_name(stack.fleet.name, stack.account.region, names.KARPENTER_NODE_PURPOSE),
        role=node_iam_role.name,
    )
    aws.eks_access_entry.EksAccessEntry(
        stack, "karpenter-nodes", cluster_name=cluster.name, principal_arn=node_iam_role.arn, type="EC2_LINUX"
    )
    queue = _add_interruption_queue(stack, kms_key)
    pod_identity.add_role(
        stack,
        "karpenter",
        cluster,
        namespace=NAMESPACE,
        service_account=SERVICE_ACCOUNT,
        description="Lets Karpenter start and end the fleet's machines",
        statements=_build_statements(stack, queue.arn, kms_key.arn, node_iam_role.arn),
    )


def _add_interruption_queue(stack: FleetStack, kms_key: aws.kms_key.KmsKey) -> aws.sqs_queue.SqsQueue:
    queue = aws.sqs_queue.SqsQueue(
        stack,
        "interruptions",
        name=names.format_interruption_queue(stack.fleet),
        message_retention_seconds=_MESSAGE_RETENTION_S,
        kms_master_key_id=kms_key.arn,
    )
    aws.sqs_queue_policy.SqsQueuePolicy(
        stack,
        "interruptions-policy",
        queue_url=queue.url,
        policy=policy.build_document(
            policy.allow_service("FromEvents", policy.EVENTS, "sqs:SendMessage", queue.arn),
            policy.require_tls("sqs:*", queue.arn),
        ),
    )
    for name, (source, detail_type) in EVENTS.items():
        rule = aws.cloudwatch_event_rule.CloudwatchEventRule(
            stack,
            f"interruption-{name}",
            name=f"{stack.fleet.name}-interruption-{name}",
            description=f"{detail_type}, for Karpenter",
            event_pattern=json.dumps({"source": [source], "detail-type": [detail_type]}),
        )
        aws.cloudwatch_event_target.CloudwatchEventTarget(
            stack, f"interruption-{name}-queue", rule=rule.name, arn=queue.arn, target_id="interruptions"
        )
    return queue


def _build_statements(stack: FleetStack, queue_arn: str, key_arn: str, node_role_arn: str) -> list[Statement]:
    """Return Karpenter's own policy, without creating instance profiles and limited to the fleet's region.

    It may use any resource that it refers to, but create, tag and terminate only those with this cluster's tags.
    Source: karpenter.sh/v1.14/reference/cloudformation, 2026-11.
    """
    return [
        *_build_start_statements(stack),
        *_build_node_statements(stack),
        *_build_read_statements(stack.account),
        *_build_queue_statements(queue_arn, key_arn),
        *_build_role_statements(stack.account, node_role_arn),
        allow("Cluster", ["eks:DescribeCluster"], stack.account.build_arn("eks", f"cluster/{stack.cluster_name}")),
    ]


def _build_read_statements(account: Account) -> list[Statement]:
    return [
        allow("Read", _READ_ACTIONS, "*", condition={"StringEquals": {"aws:RequestedRegion": account.region}}),
        # The Price List API has endpoints in a few regions only, and no resource-level permissions.
        allow("Prices", ["pricing:GetProducts"], "*"),
        allow("Images", ["ssm:GetParameter"], f"arn:{account.partition}:ssm:{account.region}::parameter/aws/service/*"),
    ]


def _build_queue_statements(queue_arn: str, key_arn: str) -> list[Statement]:
    return [
        allow("Interruptions", ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"], queue_arn),
        allow("InterruptionsKey", ["kms:Decrypt"], key_arn),
    ]


def _build_role_statements(account: Account, node_role_arn: str) -> list[Statement]:
    """Allow passing the nodes' role and reading instance profiles.

    Before Karpenter lets a node class go, it looks for profiles of its own making, also where the class names one. If
    IAM refuses to tell, the class stays for ever, and with it the removal of the cluster.
    Source: aws/karpenter-provider-aws v1.14.1, pkg/controllers/nodeclass/controller.go.
    """
    return [
        allow(
            "NodeRole",
            ["iam:PassRole"],
            node_role_arn,
            condition={"StringEquals": {"iam:PassedToService": f"ec2.{account.dns_suffix}"}},
        ),
        # IAM lists all or nothing.
        allow("ListProfiles", ["iam:ListInstanceProfiles"], "*"),
        allow(
            "ReadProfiles", ["iam:GetInstanceProfile"], f"arn:{account.partition}:iam::{account.id}:instance-profile/*"
        ),
    ]


_READ_ACTIONS = [
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
]
"""EC2 describes all or nothing: none of these takes a resource."""


def _build_start_statements(stack: FleetStack) -> list[Statement]:
    actions = ["ec2:RunInstances", "ec2:CreateFleet"]
    created = ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"]
    used = ["security-group", "subnet", "capacity-reservation", "placement-group"]
    # AMIs and snapshots of AWS's own carry no stack.account.
    public = [f"arn:{stack.account.partition}:ec2:{stack.account.region}::{kind}/*" for kind in ("image", "snapshot")]
    return [
        allow("StartWith", actions, [*public, *(stack.account.build_arn("ec2", f"{kind}/*") for kind in used)]),
        allow(
            "StartFromOwnTemplate",
            actions,
            stack.account.build_arn("ec2", "launch-template/*"),
            condition=_build_owner_condition(stack.fleet, "aws:ResourceTag"),
        ),
        allow(
            "StartTagged",
            [*actions, "ec2:CreateLaunchTemplate"],
            [stack.account.build_arn("ec2", f"{kind}/*") for kind in created],
            condition=_build_owner_condition(stack.fleet, "aws:RequestTag"),
        ),
        allow(
            "TagAtStart",
            ["ec2:CreateTags"],
            [stack.account.build_arn("ec2", f"{kind}/*") for kind in created],
            condition=_build_owner_condition(
                stack.fleet,
                "aws:RequestTag",
                **{"ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]},
            ),
        ),
    ]


def _build_node_statements(stack: FleetStack) -> list[Statement]:
    owner_condition = _build_owner_condition(stack.fleet, "aws:ResourceTag")
    keys = ["eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"]
    return [
        allow(
            "TagNodes",
            ["ec2:CreateTags"],
            stack.account.build_arn("ec2", "instance/*"),
            condition={
                **owner_condition,
                "StringEqualsIfExists": {"aws:RequestTag/eks:eks-cluster-name": stack.cluster_name},
                "ForAllValues:StringEquals": {"aws:TagKeys": keys},
            },
        ),
        allow(
            "End",
            ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"],
            [stack.account.build_arn("ec2", f"{kind}/*") for kind in ("instance", "launch-template")],
            condition=owner_condition,
        ),
    ]


def _build_owner_condition(fleet: Fleet, tag: str, **string_equals: Any) -> Statement:
    """Return the condition on the tag by which Karpenter marks what belongs to a NodePool of this cluster."""
    return {
        "StringEquals": {f"{tag}/kubernetes.io/cluster/{names.format_cluster_name(fleet)}": "owned", **string_equals},
        "StringLike": {f"{tag}/karpenter.sh/nodepool": "*"},
    }
