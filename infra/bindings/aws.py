"""The AWS provider's bindings, one module a resource type: `aws.s3_bucket.S3Bucket`. Imported on first use.

Type checkers see the modules that are listed here; another resource type takes one more line.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from infra.bindings import runtime

# isort: split
if TYPE_CHECKING:
    import cdktf_cdktf_provider_aws.appautoscaling_policy as appautoscaling_policy
    import cdktf_cdktf_provider_aws.appautoscaling_scheduled_action as appautoscaling_scheduled_action
    import cdktf_cdktf_provider_aws.appautoscaling_target as appautoscaling_target
    import cdktf_cdktf_provider_aws.autoscaling_group as autoscaling_group
    import cdktf_cdktf_provider_aws.budgets_budget as budgets_budget
    import cdktf_cdktf_provider_aws.cloudwatch_dashboard as cloudwatch_dashboard
    import cdktf_cdktf_provider_aws.cloudwatch_event_rule as cloudwatch_event_rule
    import cdktf_cdktf_provider_aws.cloudwatch_event_target as cloudwatch_event_target
    import cdktf_cdktf_provider_aws.cloudwatch_log_group as cloudwatch_log_group
    import cdktf_cdktf_provider_aws.cloudwatch_log_stream as cloudwatch_log_stream
    import cdktf_cdktf_provider_aws.cloudwatch_metric_alarm as cloudwatch_metric_alarm
    import cdktf_cdktf_provider_aws.data_aws_caller_identity as data_aws_caller_identity
    import cdktf_cdktf_provider_aws.data_aws_eks_cluster as data_aws_eks_cluster
    import cdktf_cdktf_provider_aws.data_aws_iam_session_context as data_aws_iam_session_context
    import cdktf_cdktf_provider_aws.data_aws_kms_alias as data_aws_kms_alias
    import cdktf_cdktf_provider_aws.data_aws_partition as data_aws_partition
    import cdktf_cdktf_provider_aws.data_aws_prefix_list as data_aws_prefix_list
    import cdktf_cdktf_provider_aws.data_aws_secretsmanager_secret as data_aws_secretsmanager_secret
    import cdktf_cdktf_provider_aws.data_aws_service_discovery_dns_namespace as data_aws_service_discovery_dns_namespace
    import cdktf_cdktf_provider_aws.data_aws_ssm_parameter as data_aws_ssm_parameter
    import cdktf_cdktf_provider_aws.data_aws_subnet as data_aws_subnet
    import cdktf_cdktf_provider_aws.data_aws_vpc as data_aws_vpc
    import cdktf_cdktf_provider_aws.data_aws_vpc_endpoint_service as data_aws_vpc_endpoint_service
    import cdktf_cdktf_provider_aws.db_instance as db_instance
    import cdktf_cdktf_provider_aws.db_parameter_group as db_parameter_group
    import cdktf_cdktf_provider_aws.db_subnet_group as db_subnet_group
    import cdktf_cdktf_provider_aws.default_security_group as default_security_group
    import cdktf_cdktf_provider_aws.ec2_capacity_reservation as ec2_capacity_reservation
    import cdktf_cdktf_provider_aws.ecr_lifecycle_policy as ecr_lifecycle_policy
    import cdktf_cdktf_provider_aws.ecr_pull_through_cache_rule as ecr_pull_through_cache_rule
    import cdktf_cdktf_provider_aws.ecr_repository as ecr_repository
    import cdktf_cdktf_provider_aws.ecr_repository_creation_template as ecr_repository_creation_template
    import cdktf_cdktf_provider_aws.ecs_capacity_provider as ecs_capacity_provider
    import cdktf_cdktf_provider_aws.ecs_cluster as ecs_cluster
    import cdktf_cdktf_provider_aws.ecs_cluster_capacity_providers as ecs_cluster_capacity_providers
    import cdktf_cdktf_provider_aws.ecs_service as ecs_service
    import cdktf_cdktf_provider_aws.ecs_task_definition as ecs_task_definition
    import cdktf_cdktf_provider_aws.eip as eip
    import cdktf_cdktf_provider_aws.eks_access_entry as eks_access_entry
    import cdktf_cdktf_provider_aws.eks_access_policy_association as eks_access_policy_association
    import cdktf_cdktf_provider_aws.eks_addon as eks_addon
    import cdktf_cdktf_provider_aws.eks_cluster as eks_cluster
    import cdktf_cdktf_provider_aws.eks_node_group as eks_node_group
    import cdktf_cdktf_provider_aws.eks_pod_identity_association as eks_pod_identity_association
    import cdktf_cdktf_provider_aws.elasticache_parameter_group as elasticache_parameter_group
    import cdktf_cdktf_provider_aws.elasticache_replication_group as elasticache_replication_group
    import cdktf_cdktf_provider_aws.elasticache_subnet_group as elasticache_subnet_group
    import cdktf_cdktf_provider_aws.flow_log as flow_log
    import cdktf_cdktf_provider_aws.glue_catalog_database as glue_catalog_database
    import cdktf_cdktf_provider_aws.glue_catalog_table as glue_catalog_table
    import cdktf_cdktf_provider_aws.iam_instance_profile as iam_instance_profile
    import cdktf_cdktf_provider_aws.iam_role as iam_role
    import cdktf_cdktf_provider_aws.iam_role_policy as iam_role_policy
    import cdktf_cdktf_provider_aws.iam_role_policy_attachment as iam_role_policy_attachment
    import cdktf_cdktf_provider_aws.internet_gateway as internet_gateway
    import cdktf_cdktf_provider_aws.kinesisanalyticsv2_application as kinesisanalyticsv2_application
    import cdktf_cdktf_provider_aws.kms_alias as kms_alias
    import cdktf_cdktf_provider_aws.kms_key as kms_key
    import cdktf_cdktf_provider_aws.lambda_event_source_mapping as lambda_event_source_mapping
    import cdktf_cdktf_provider_aws.lambda_function as lambda_function
    import cdktf_cdktf_provider_aws.lambda_invocation as lambda_invocation
    import cdktf_cdktf_provider_aws.lambda_permission as lambda_permission
    import cdktf_cdktf_provider_aws.launch_template as launch_template
    import cdktf_cdktf_provider_aws.lb as lb
    import cdktf_cdktf_provider_aws.lb_listener as lb_listener
    import cdktf_cdktf_provider_aws.lb_target_group as lb_target_group
    import cdktf_cdktf_provider_aws.msk_cluster as msk_cluster
    import cdktf_cdktf_provider_aws.msk_configuration as msk_configuration
    import cdktf_cdktf_provider_aws.nat_gateway as nat_gateway
    import cdktf_cdktf_provider_aws.placement_group as placement_group
    import cdktf_cdktf_provider_aws.provider as provider
    import cdktf_cdktf_provider_aws.resourcegroups_group as resourcegroups_group
    import cdktf_cdktf_provider_aws.resourcegroups_resource as resourcegroups_resource
    import cdktf_cdktf_provider_aws.route as route
    import cdktf_cdktf_provider_aws.route_table as route_table
    import cdktf_cdktf_provider_aws.route_table_association as route_table_association
    import cdktf_cdktf_provider_aws.s3_bucket as s3_bucket
    import cdktf_cdktf_provider_aws.s3_bucket_lifecycle_configuration as s3_bucket_lifecycle_configuration
    import cdktf_cdktf_provider_aws.s3_bucket_notification as s3_bucket_notification
    import cdktf_cdktf_provider_aws.s3_bucket_ownership_controls as s3_bucket_ownership_controls
    import cdktf_cdktf_provider_aws.s3_bucket_policy as s3_bucket_policy
    import cdktf_cdktf_provider_aws.s3_bucket_public_access_block as s3_bucket_public_access_block
    import cdktf_cdktf_provider_aws.s3_bucket_server_side_encryption_configuration as s3_bucket_server_side_encryption_configuration
    import cdktf_cdktf_provider_aws.s3_bucket_versioning as s3_bucket_versioning
    import cdktf_cdktf_provider_aws.s3_object as s3_object
    import cdktf_cdktf_provider_aws.scheduler_schedule as scheduler_schedule
    import cdktf_cdktf_provider_aws.secretsmanager_secret as secretsmanager_secret
    import cdktf_cdktf_provider_aws.security_group as security_group
    import cdktf_cdktf_provider_aws.service_discovery_http_namespace as service_discovery_http_namespace
    import cdktf_cdktf_provider_aws.service_discovery_private_dns_namespace as service_discovery_private_dns_namespace
    import cdktf_cdktf_provider_aws.service_discovery_service as service_discovery_service
    import cdktf_cdktf_provider_aws.sfn_state_machine as sfn_state_machine
    import cdktf_cdktf_provider_aws.sns_topic as sns_topic
    import cdktf_cdktf_provider_aws.sns_topic_policy as sns_topic_policy
    import cdktf_cdktf_provider_aws.sqs_queue as sqs_queue
    import cdktf_cdktf_provider_aws.sqs_queue_policy as sqs_queue_policy
    import cdktf_cdktf_provider_aws.ssm_parameter as ssm_parameter
    import cdktf_cdktf_provider_aws.subnet as subnet
    import cdktf_cdktf_provider_aws.vpc as vpc
    import cdktf_cdktf_provider_aws.vpc_endpoint as vpc_endpoint
    import cdktf_cdktf_provider_aws.vpc_security_group_egress_rule as vpc_security_group_egress_rule
    import cdktf_cdktf_provider_aws.vpc_security_group_ingress_rule as vpc_security_group_ingress_rule
    import cdktf_cdktf_provider_aws.wafv2_web_acl_association as wafv2_web_acl_association
else:
    import cdktf_cdktf_provider_aws as _bindings

    def __getattr__(name: str) -> object:
        return getattr(_bindings, name)
