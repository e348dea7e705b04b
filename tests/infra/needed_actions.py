"""The actions that each kind of resource takes, for the tests of what preflight asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llm_serving.aws.preflight import permissions
from llm_serving.fleet.model import Fleet

ACTIONS = {
    "aws_autoscaling_group": (
        *("autoscaling:CreateAutoScalingGroup", "autoscaling:CreateOrUpdateTags", "autoscaling:PutWarmPool"),
        *("autoscaling:CancelInstanceRefresh", "autoscaling:StartInstanceRefresh"),
    ),
    "aws_budgets_budget": ("budgets:ModifyBudget", "budgets:TagResource"),
    "aws_cloudwatch_dashboard": ("cloudwatch:PutDashboard",),
    "aws_cloudwatch_event_rule": ("events:PutRule", "events:TagResource"),
    "aws_cloudwatch_event_target": ("events:PutTargets",),
    "aws_cloudwatch_log_group": ("logs:CreateLogGroup", "logs:PutRetentionPolicy", "logs:TagResource"),
    "aws_cloudwatch_metric_alarm": ("cloudwatch:PutMetricAlarm", "cloudwatch:TagResource"),
    # EC2 gives every VPC the group; the provider takes its rules away.
    "aws_default_security_group": ("ec2:RevokeSecurityGroupEgress", "ec2:RevokeSecurityGroupIngress"),
    "aws_ec2_capacity_reservation": ("ec2:CreateCapacityReservation",),
    "aws_ecr_lifecycle_policy": ("ecr:PutLifecyclePolicy",),
    "aws_ecr_pull_through_cache_rule": ("ecr:CreatePullThroughCacheRule", "iam:CreateServiceLinkedRole"),
    # ECR encrypts with the fleet's key too.
    "aws_ecr_repository": ("ecr:CreateRepository", "ecr:TagResource", "kms:CreateGrant", "kms:RetireGrant"),
    "aws_ecr_repository_creation_template": ("ecr:CreateRepositoryCreationTemplate",),
    "aws_ecs_capacity_provider": ("ecs:CreateCapacityProvider", "ecs:TagResource"),
    "aws_ecs_cluster": ("ecs:CreateCluster", "ecs:TagResource", "iam:CreateServiceLinkedRole"),
    "aws_ecs_cluster_capacity_providers": ("ecs:PutClusterCapacityProviders",),
    "aws_ecs_task_definition": ("ecs:RegisterTaskDefinition", "iam:PassRole"),
    "aws_eip": ("ec2:AllocateAddress",),
    "aws_eks_access_entry": ("eks:CreateAccessEntry",),
    "aws_eks_access_policy_association": ("eks:AssociateAccessPolicy",),
    "aws_eks_addon": ("eks:CreateAddon",),
    # Secrets are encrypted with the fleet's key, by a grant that EKS makes in the caller's name.
    "aws_eks_cluster": ("eks:CreateCluster", "eks:TagResource", "iam:PassRole", "kms:CreateGrant"),
    "aws_eks_node_group": ("eks:CreateNodegroup", "iam:PassRole"),
    "aws_eks_pod_identity_association": ("eks:CreatePodIdentityAssociation", "iam:PassRole"),
    "aws_flow_log": ("ec2:CreateFlowLogs", "logs:CreateLogDelivery"),
    "aws_iam_instance_profile": ("iam:AddRoleToInstanceProfile", "iam:CreateInstanceProfile", "iam:TagInstanceProfile"),
    # The fleet file may get a boundary, and lose it.
    "aws_iam_role": (
        *("iam:CreateRole", "iam:TagRole"),
        *("iam:DeleteRolePermissionsBoundary", "iam:PutRolePermissionsBoundary"),
    ),
    "aws_iam_role_policy": ("iam:PutRolePolicy",),
    "aws_iam_role_policy_attachment": ("iam:AttachRolePolicy",),
    "aws_internet_gateway": ("ec2:AttachInternetGateway", "ec2:CreateInternetGateway"),
    "aws_kms_alias": ("kms:CreateAlias",),
    "aws_kms_key": ("kms:CreateKey", "kms:EnableKeyRotation", "kms:TagResource"),
    "aws_lambda_event_source_mapping": ("lambda:CreateEventSourceMapping", "lambda:TagResource"),
    "aws_lambda_function": ("iam:PassRole", "lambda:CreateFunction", "lambda:TagResource"),
    "aws_lambda_invocation": ("lambda:InvokeFunction",),
    "aws_lambda_permission": ("lambda:AddPermission",),
    "aws_launch_template": ("ec2:CreateLaunchTemplate",),
    "aws_nat_gateway": ("ec2:CreateNatGateway",),
    "aws_placement_group": ("ec2:CreatePlacementGroup",),
    "aws_resourcegroups_group": ("resource-groups:CreateGroup",),
    "aws_resourcegroups_resource": ("resource-groups:GroupResources",),
    "aws_route": ("ec2:CreateRoute",),
    "aws_route_table": ("ec2:CreateRouteTable",),
    "aws_route_table_association": ("ec2:AssociateRouteTable",),
    "aws_s3_bucket": ("s3:CreateBucket", "s3:PutBucketTagging"),
    "aws_s3_bucket_lifecycle_configuration": ("s3:PutLifecycleConfiguration",),
    "aws_s3_bucket_notification": ("s3:PutBucketNotification",),
    "aws_s3_bucket_ownership_controls": ("s3:PutBucketOwnershipControls",),
    "aws_s3_bucket_policy": ("s3:PutBucketPolicy",),
    "aws_s3_bucket_public_access_block": ("s3:PutBucketPublicAccessBlock",),
    "aws_s3_bucket_server_side_encryption_configuration": ("s3:PutEncryptionConfiguration",),
    "aws_s3_bucket_versioning": ("s3:PutBucketVersioning",),
    "aws_security_group": ("ec2:CreateSecurityGroup",),
    "aws_service_discovery_http_namespace": ("servicediscovery:CreateHttpNamespace", "servicediscovery:TagResource"),
    "aws_service_discovery_private_dns_namespace": (
        *("route53:CreateHostedZone", "servicediscovery:CreatePrivateDnsNamespace"),
    ),
    "aws_sqs_queue": ("sqs:CreateQueue", "sqs:TagQueue"),
    "aws_sqs_queue_policy": ("sqs:SetQueueAttributes",),
    "aws_subnet": ("ec2:CreateSubnet",),
    "aws_vpc": ("ec2:CreateVpc", "ec2:ModifyVpcAttribute"),
    "aws_vpc_endpoint": ("ec2:CreateVpcEndpoint",),
    # A rule of another port, range or description changes in place.
    "aws_vpc_security_group_egress_rule": ("ec2:AuthorizeSecurityGroupEgress", "ec2:ModifySecurityGroupRules"),
    "aws_vpc_security_group_ingress_rule": ("ec2:AuthorizeSecurityGroupIngress", "ec2:ModifySecurityGroupRules"),
    "aws_appautoscaling_policy": ("application-autoscaling:PutScalingPolicy",),
    "aws_appautoscaling_scheduled_action": ("application-autoscaling:PutScheduledAction",),
    "aws_appautoscaling_target": (
        "application-autoscaling:RegisterScalableTarget",
        "application-autoscaling:TagResource",
    ),
    "aws_cloudwatch_log_stream": ("logs:CreateLogStream",),
    "aws_db_instance": (
        "kms:CreateGrant",
        "rds:AddTagsToResource",
        "rds:CreateDBInstance",
        "secretsmanager:CreateSecret",
    ),
    "aws_db_parameter_group": (
        "rds:CreateDBParameterGroup",
        "rds:ModifyDBParameterGroup",
    ),
    "aws_db_subnet_group": ("rds:CreateDBSubnetGroup",),
    "aws_ecs_service": (
        "ecs:CreateService",
        "ecs:RunTask",
        "ecs:TagResource",
        "ecs:UpdateService",
    ),
    "aws_elasticache_parameter_group": (
        "elasticache:CreateCacheParameterGroup",
        "elasticache:ModifyCacheParameterGroup",
    ),
    "aws_elasticache_replication_group": (
        "elasticache:AddTagsToResource",
        "elasticache:CreateReplicationGroup",
        "kms:CreateGrant",
    ),
    "aws_elasticache_subnet_group": ("elasticache:CreateCacheSubnetGroup",),
    "aws_glue_catalog_database": (
        "glue:CreateDatabase",
        "glue:TagResource",
    ),
    "aws_glue_catalog_table": ("glue:CreateTable",),
    "aws_kinesisanalyticsv2_application": (
        "iam:PassRole",
        "kinesisanalytics:CreateApplication",
        "kinesisanalytics:StartApplication",
        "kinesisanalytics:TagResource",
    ),
    "aws_lb": (
        "elasticloadbalancing:AddTags",
        "elasticloadbalancing:CreateLoadBalancer",
        "elasticloadbalancing:ModifyLoadBalancerAttributes",
    ),
    "aws_lb_listener": ("elasticloadbalancing:CreateListener",),
    "aws_lb_target_group": (
        "elasticloadbalancing:CreateTargetGroup",
        "elasticloadbalancing:ModifyTargetGroupAttributes",
    ),
    "aws_msk_cluster": (
        "kafka:CreateCluster",
        "kafka:TagResource",
        "kms:CreateGrant",
        "logs:CreateLogDelivery",
        "logs:DescribeLogGroups",
        "logs:DescribeResourcePolicies",
        "logs:GetLogDelivery",
        "logs:ListLogDeliveries",
        "logs:PutResourcePolicy",
        "logs:UpdateLogDelivery",
    ),
    "aws_msk_configuration": ("kafka:CreateConfiguration",),
    "aws_s3_object": ("kms:Decrypt", "kms:GenerateDataKey", "s3:PutObject"),
    "aws_scheduler_schedule": (
        "iam:PassRole",
        "scheduler:CreateSchedule",
    ),
    "aws_secretsmanager_secret": (
        "secretsmanager:CreateSecret",
        "secretsmanager:TagResource",
    ),
    "aws_service_discovery_service": (
        "servicediscovery:CreateService",
        "servicediscovery:DeregisterInstance",
        "servicediscovery:TagResource",
    ),
    "aws_sfn_state_machine": (
        "iam:PassRole",
        "states:CreateStateMachine",
        "states:TagResource",
    ),
    "aws_sns_topic": (
        "sns:CreateTopic",
        "sns:TagResource",
    ),
    "aws_sns_topic_policy": ("sns:SetTopicAttributes",),
    "aws_ssm_parameter": (
        "ssm:AddTagsToResource",
        "ssm:PutParameter",
    ),
    "aws_wafv2_web_acl_association": ("elasticloadbalancing:SetWebAcl", "wafv2:AssociateWebACL"),
}
"""What creating a resource takes with its tags, by kind, and what changes it by a call of another name.

Sources: AWS Service Authorization Reference; EKS user guide, "Encrypt Kubernetes secrets with KMS"; ECR user guide,
"Create a custom policy for repository creation templates"; CloudWatch user guide, "Alarms and tagging"; S3 user guide,
"Multipart upload API and permissions"; WAF developer guide, "Permissions for AssociateWebACL"; Cloud Map developer
guide, "AWS Cloud Map API permissions"; VPC user guide, "Publish flow logs to Amazon S3"; AWS managed policy reference,
AmazonMSKFullAccess, which MSK's developer guide asks of whoever creates a cluster with broker logs; 2026-11.
"""


def find_unasked(stack: Mapping[str, Any], asked: Iterable[str]) -> dict[str, list[str]]:
    """Return actions that are not asked for, by the kind of resource that takes them."""
    resources = stack.get("resource", {})
    missing = {kind: sorted(set(ACTIONS[kind]) - set(asked)) for kind in resources}
    # Terraform empties these before it deletes them.
    if any(bucket["force_destroy"] for bucket in resources.get("aws_s3_bucket", {}).values()):
        missing["aws_s3_bucket"] += {"s3:DeleteObjectVersion"} - set(asked)
    return {kind: actions for kind, actions in missing.items() if actions}


def find_unasked_of_kind(stacks: Mapping[str, Any], fleet: Fleet, kind: str) -> dict[str, list[str]]:
    """Return those that neither the fleet nor the kind of work asks for."""
    lists = (*permissions.list_actions_by_part(fleet).values(), permissions.list_actions_by_kind(fleet).get(kind, ()))
    asked = {action for actions in lists for action in actions}
    return {name: actions for stack in stacks.values() for name, actions in find_unasked(stack, asked).items()}
