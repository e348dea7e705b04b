"""Roles of the platform's controllers that call AWS: the load balancer controller and the cluster autoscaler.

Their charts give the service accounts these names.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.bindings import aws
from infra.constructs import pod_identity
from infra.constructs.account import Account
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement, allow

NAMESPACE = "kube-system"
LOAD_BALANCER_CONTROLLER = "aws-load-balancer-controller"
AUTOSCALER = "cluster-autoscaler"

_CLUSTER_TAG = "elbv2.k8s.aws/cluster"
"""The tag that the load balancer controller puts on the resources that it creates."""


def add_load_balancer_role(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster) -> None:
    """Add the load balancer controller's role."""
    _add_controller_role(
        stack, "load-balancers", LOAD_BALANCER_CONTROLLER, cluster, _build_load_balancer_statements(stack)
    )


def add_autoscaler_role(stack: FleetStack, *, cluster: aws.eks_cluster.EksCluster) -> None:
    """Add the cluster autoscaler's role; Karpenter sizes what it starts itself."""
    _add_controller_role(stack, "autoscaler", AUTOSCALER, cluster, _build_autoscaler_statements(stack))


def _add_controller_role(
    stack: FleetStack,
    name: str,
    service_account: str,
    cluster: aws.eks_cluster.EksCluster,
    statements: Sequence[Statement],
) -> None:
    pod_identity.add_role(
        stack,
        name,
        cluster,
        namespace=NAMESPACE,
        service_account=service_account,
        description=f"Lets {service_account} call AWS",
        statements=statements,
    )


def _build_load_balancer_statements(stack: FleetStack) -> list[Statement]:
    """Return the controller's own list, less classic WAF and Shield, which its chart's values switch off, and Outposts.

    Source: kubernetes-sigs/aws-load-balancer-controller v3.5.0, docs/install/iam_policy.json.
    """
    return [
        allow(
            # An account's first load balancer brings the role by which ELB works in it.
            "ServiceRole",
            ["iam:CreateServiceLinkedRole"],
            stack.account.build_service_role_arn("elasticloadbalancing", "AWSServiceRoleForElasticLoadBalancing"),
            condition={"StringEquals": {"iam:AWSServiceName": "elasticloadbalancing.amazonaws.com"}},
        ),
        # Neither service supports resource-level permissions for Describe; certificate ARNs do not contain their names.
        allow("Read", _READ_ACTIONS, "*"),
        *_build_security_group_statements(stack),
        *_build_balancer_statements(stack),
        _build_firewall_statement(stack.account),
    ]


def _build_firewall_statement(account: Account) -> Statement:
    """Web ACLs before load balancers that blueprints put one to."""
    return allow(
        "Firewall",
        [
            "wafv2:GetWebACL",
            "wafv2:GetWebACLForResource",
            "wafv2:AssociateWebACL",
            "wafv2:DisassociateWebACL",
            "elasticloadbalancing:SetWebAcl",
        ],
        [
            account.build_arn("wafv2", "regional/webacl/*/*"),
            account.build_arn("elasticloadbalancing", "loadbalancer/app/*"),
        ],
    )


def _build_security_group_statements(stack: FleetStack) -> list[Statement]:
    groups = stack.account.build_arn("ec2", "security-group/*")
    cluster = stack.cluster_name
    return [
        allow("MakeGroups", ["ec2:CreateSecurityGroup"], [groups, stack.account.build_arn("ec2", "vpc/*")]),
        allow(
            "TagGroups",
            ["ec2:CreateTags"],
            groups,
            condition={
                "StringEquals": {"ec2:CreateAction": "CreateSecurityGroup", f"aws:RequestTag/{_CLUSTER_TAG}": cluster}
            },
        ),
        allow(
            "OwnGroups",
            ["ec2:DeleteSecurityGroup", "ec2:CreateTags", "ec2:DeleteTags"],
            groups,
            condition={"StringEquals": {f"aws:ResourceTag/{_CLUSTER_TAG}": cluster}},
        ),
        allow(
            # On the nodes' security group too, which EKS creates: load balancers must reach pods.
            "Rules",
            ["ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"],
            groups,
        ),
    ]


def _build_balancer_statements(stack: FleetStack) -> list[Statement]:
    balancers = [
        stack.account.build_arn("elasticloadbalancing", f"{kind}/*") for kind in ("loadbalancer", "targetgroup")
    ]
    listeners = [stack.account.build_arn("elasticloadbalancing", f"{kind}/*") for kind in ("listener", "listener-rule")]
    cluster = stack.cluster_name
    return [
        allow(
            "Make",
            [
                "elasticloadbalancing:CreateLoadBalancer",
                "elasticloadbalancing:CreateTargetGroup",
                "elasticloadbalancing:AddTags",
            ],
            balancers,
            condition={"StringEquals": {f"aws:RequestTag/{_CLUSTER_TAG}": cluster}},
        ),
        allow(
            # ELB asks for this too where a listener or a rule is created with tags, as the controller does.
            "TagListeners",
            ["elasticloadbalancing:AddTags"],
            listeners,
            condition={"StringEquals": {f"aws:RequestTag/{_CLUSTER_TAG}": cluster}},
        ),
        allow(
            "Own",
            [f"elasticloadbalancing:{action}" for action in _OWNED_ACTIONS],
            [*balancers, *listeners],
            condition={"StringEquals": {f"aws:ResourceTag/{_CLUSTER_TAG}": cluster}},
        ),
        allow(
            # A listener has its load balancer's tags only once both exist.
            "Listeners",
            [f"elasticloadbalancing:{action}" for action in _LISTENER_ACTIONS],
            [*balancers, *listeners],
        ),
    ]


_READ_ACTIONS = [
    *(
        f"ec2:Describe{resource_kind}"
        for resource_kind in (
            "AccountAttributes",
            "AvailabilityZones",
            "InternetGateways",
            "Vpcs",
            "Subnets",
            "SecurityGroups",
            "Instances",
            "NetworkInterfaces",
            "RouteTables",
            "Tags",
        )
    ),
    "ec2:GetSecurityGroupsForVpc",
    *(
        f"elasticloadbalancing:Describe{resource_kind}"
        for resource_kind in (
            "LoadBalancers",
            "LoadBalancerAttributes",
            "CapacityReservation",
            "Listeners",
            "ListenerAttributes",
            "ListenerCertificates",
            "SSLPolicies",
            "Rules",
            "TargetGroups",
            "TargetGroupAttributes",
            "TargetHealth",
            "Tags",
            "TrustStores",
        )
    ),
    "acm:ListCertificates",
    "acm:DescribeCertificate",
]
_OWNED_ACTIONS = (
    "AddTags",
    "RemoveTags",
    "ModifyCapacityReservation",
    "ModifyIpPools",
    "ModifyLoadBalancerAttributes",
    "SetIpAddressType",
    "SetSecurityGroups",
    "SetSubnets",
    "DeleteLoadBalancer",
    "ModifyTargetGroup",
    "ModifyTargetGroupAttributes",
    "RegisterTargets",
    "DeregisterTargets",
    "DeleteTargetGroup",
)
_LISTENER_ACTIONS = (
    "CreateListener",
    "ModifyListener",
    "ModifyListenerAttributes",
    "DeleteListener",
    "CreateRule",
    "ModifyRule",
    "SetRulePriorities",
    "DeleteRule",
    "AddListenerCertificates",
    "RemoveListenerCertificates",
)


def _build_autoscaler_statements(stack: FleetStack) -> list[Statement]:
    """Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md, 2026-11."""
    cluster = stack.cluster_name
    return [
        allow(
            "Read",  # Auto Scaling describes all or nothing
            [
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeAutoScalingInstances",
                "autoscaling:DescribeLaunchConfigurations",
                "autoscaling:DescribeScalingActivities",
                "ec2:DescribeImages",
                "ec2:DescribeInstanceTypes",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:GetInstanceTypesFromInstanceRequirements",
            ],
            "*",
        ),
        allow(
            "NodeGroups",  # for the labels and taints of a group that has no node yet
            ["eks:DescribeNodegroup"],
            stack.account.build_arn("eks", f"nodegroup/{cluster}/*"),
        ),
        allow(
            "Size",
            ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
            stack.account.build_arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*"),
            # EKS gives both tags to the groups of its node groups.
            condition={"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}},
        ),
    ]
