"""IAM actions that applying a fleet takes, by part of the fleet: those that make things, and those that end them.

Sources, read 2026-11: AWS Service Authorization Reference ("Actions, resources, and condition keys" of each service).
Reading (Describe, Get, List) comes along with every grant of these in practice and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_serving.catalog import account_needs
from llm_serving.fleet.model import Fleet, NewNetwork, Reservation

_KEY = ("kms:CreateKey", "kms:CreateAlias", "kms:EnableKeyRotation", "kms:TagResource", "kms:ScheduleKeyDeletion")
_ROLE = (
    *("iam:CreateRole", "iam:TagRole", "iam:PutRolePolicy", "iam:AttachRolePolicy", "iam:PassRole", "iam:DeleteRole"),
)
_BUCKET = (
    *("s3:CreateBucket", "s3:PutBucketTagging", "s3:PutBucketVersioning", "s3:PutEncryptionConfiguration"),
    *("s3:PutBucketPolicy", "s3:PutBucketPublicAccessBlock", "s3:PutBucketOwnershipControls"),
    *("s3:PutLifecycleConfiguration", "s3:DeleteBucket"),
)
_LOG_GROUP = ("logs:CreateLogGroup", "logs:TagResource", "logs:PutRetentionPolicy", "logs:DeleteLogGroup")

_NEW_NETWORK = (
    *("ec2:CreateVpc", "ec2:ModifyVpcAttribute", "ec2:CreateSubnet", "ec2:CreateRouteTable", "ec2:CreateRoute"),
    *("ec2:AssociateRouteTable", "ec2:CreateSecurityGroup", "ec2:AuthorizeSecurityGroupIngress"),
    *("ec2:RevokeSecurityGroupIngress", "ec2:RevokeSecurityGroupEgress", "ec2:CreateVpcEndpoint"),
    *("ec2:CreateTags", "ec2:DeleteVpc", "ec2:DeleteSubnet", "ec2:DeleteVpcEndpoints"),
)
_FLOW_LOGS = (
    *("ec2:CreateFlowLogs", "ec2:DeleteFlowLogs", "logs:CreateLogDelivery", "logs:DeleteLogDelivery"),
    *(*_BUCKET, *_KEY),
)
_NAT = (
    *("ec2:CreateInternetGateway", "ec2:AttachInternetGateway", "ec2:AllocateAddress", "ec2:CreateNatGateway"),
    *("ec2:DeleteNatGateway", "ec2:ReleaseAddress"),
)
_STORAGE = (
    *(*_BUCKET, "s3:PutBucketNotification", *_KEY),
    *("ecr:CreateRepository", "ecr:TagResource", "ecr:PutLifecyclePolicy", "ecr:DeleteRepository"),
)
_IMAGE_CACHE = (
    *("ecr:CreatePullThroughCacheRule", "ecr:CreateRepositoryCreationTemplate", "ecr:DeletePullThroughCacheRule"),
    *("ecr:DeleteRepositoryCreationTemplate", "iam:CreateServiceLinkedRole"),
)
# Terraform's lock file is an object beside the state: it is written, and deleted when the work is done.
_STATE = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_MACHINES = (
    *("ec2:CreateLaunchTemplate", "ec2:CreateLaunchTemplateVersion", "ec2:DeleteLaunchTemplate", "ec2:RunInstances"),
    *("ec2:CreateSecurityGroup", "ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupEgress"),
    *("ec2:CreateTags", "iam:CreateInstanceProfile", "iam:TagInstanceProfile", "iam:AddRoleToInstanceProfile"),
    *("iam:CreateServiceLinkedRole", *_ROLE),
)
_ALARMS = ("cloudwatch:PutMetricAlarm", "cloudwatch:DeleteAlarms")
_RULES = ("events:PutRule", "events:TagResource", "events:PutTargets", "events:RemoveTargets", "events:DeleteRule")
_FUNCTION = (
    *("lambda:CreateFunction", "lambda:TagResource", "lambda:UpdateFunctionCode", "lambda:AddPermission"),
    *("lambda:DeleteFunction", *_LOG_GROUP),
    *_RULES,
)
_EKS = (
    *("eks:CreateCluster", "eks:UpdateClusterConfig", "eks:CreateNodegroup", "eks:CreateAddon"),
    *("eks:CreateAccessEntry", "eks:AssociateAccessPolicy", "eks:CreatePodIdentityAssociation"),
    *("eks:TagResource", "eks:DeleteCluster", "eks:DeleteNodegroup", "sqs:CreateQueue", "sqs:SetQueueAttributes"),
    *("sqs:TagQueue", "lambda:InvokeFunction", *_FUNCTION, *_KEY),
    "kms:CreateGrant",  # by which EKS encrypts secrets with the fleet's key
)
_ECS = (
    *("ecs:CreateCluster", "ecs:CreateCapacityProvider", "ecs:PutClusterCapacityProviders"),
    *("ecs:RegisterTaskDefinition", "ecs:CreateService", "ecs:DeleteService", "ecs:DeleteCluster"),
    *("autoscaling:CreateAutoScalingGroup", "autoscaling:UpdateAutoScalingGroup", "autoscaling:DeleteAutoScalingGroup"),
    *("ecs:TagResource", "autoscaling:CreateOrUpdateTags", *_ALARMS),
    *("servicediscovery:CreateHttpNamespace", "servicediscovery:CreatePrivateDnsNamespace"),
    # Cloud Map makes the private namespace's zone in the caller's name.
    *("servicediscovery:TagResource", "servicediscovery:DeleteNamespace", "route53:CreateHostedZone"),
    # The queue that calls the function which replaces instances with broken GPUs.
    *("sqs:CreateQueue", "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:DeleteQueue"),
    *("lambda:CreateEventSourceMapping", "lambda:DeleteEventSourceMapping", "lambda:TagResource"),
    *(*_FUNCTION, *_KEY),
)
_DASHBOARDS = ("cloudwatch:PutDashboard", "cloudwatch:DeleteDashboards")

_RESERVATIONS = (
    *("resource-groups:CreateGroup", "resource-groups:DeleteGroup", "resource-groups:GroupResources"),
    *("resource-groups:UngroupResources", "resource-groups:Tag"),
)
_RESERVE_ACTIONS = ("ec2:CreateCapacityReservation", "ec2:ModifyCapacityReservation", "ec2:CancelCapacityReservation")
_PLACEMENT = ("ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup")


def list_actions_by_part(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """Return the actions by part of the fleet, each once."""
    parts: dict[str, tuple[str, ...]] = {}
    if isinstance(fleet.network, NewNetwork):
        parts["network"] = (
            _NEW_NETWORK + (_NAT if fleet.network.nat else ()) + (_FLOW_LOGS if fleet.network.flow_logs else ())
        )
    parts["storage"] = (
        *_STORAGE,
        *(_IMAGE_CACHE if fleet.image_cache else ()),
        *(("budgets:ModifyBudget",) if fleet.budget_to else ()),
        *((*_ALARMS, *_RULES) if fleet.alarms_to else ()),
    )
    if fleet.state != "local":
        parts["state"] = _STATE
    parts["instances"] = _MACHINES + tuple(_list_reservation_actions(fleet))
    eks_actions = _EKS + (_BUCKET if fleet.logs.to == "s3" else ())
    for name, actions in (("eks", eks_actions), ("ecs", _ECS + (_DASHBOARDS if fleet.add_ons.observability else ()))):
        if name in fleet.orchestrators:
            parts[name.upper()] = actions
    return {part: tuple(dict.fromkeys(actions)) for part, actions in parts.items()}


def list_actions_by_kind(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """Return the actions that deploying each kind of work takes beside those of the fleet, by the kind's name."""
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, needs in account_needs.load_all().items():
        actions: list[str] = []
        for orchestrator in sorted(fleet.orchestrators):
            actions += needs.permissions.get(orchestrator, ())
        if actions:
            kinds[kind] = tuple(dict.fromkeys(actions))
    return kinds


def _list_reservation_actions(fleet: Fleet) -> Iterator[str]:
    """Return what the pools' reservations and placement groups take."""
    pools = fleet.pools.values()
    if any(isinstance(option, Reservation) and not option.capacity_block for pool in pools for option in pool.buy):
        yield from _RESERVATIONS
    if any(pool.reserve_count for pool in pools):
        yield from _RESERVE_ACTIONS
    if any(pool.placement_group == "cluster" for pool in pools):
        yield from _PLACEMENT
