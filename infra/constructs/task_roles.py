"""By whom tasks of a deployment are started, and as whom they act: each may do what it needs, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from infra.bindings import aws
from infra.constructs import iam, model_reader, registry
from infra.constructs.ecs_cluster import build_exec_log_group_name
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement, add_role, allow
from llm_serving.fleet import names


def build_trust_policy(account: Account) -> str:
    """Return the trust policy for ECS tasks of this account only."""
    return iam.build_trust_policy(
        "ecs-tasks.amazonaws.com",
        ArnLike={"aws:SourceArn": account.build_arn("ecs", "*")},
        StringEquals={"aws:SourceAccount": account.id},
    )


def add_execution_role(
    stack: FleetStack, deployment: str, *, log_group: aws.cloudwatch_log_group.CloudwatchLogGroup, secrets: str = ""
) -> aws.iam_role.IamRole:
    """Add the role by which ECS pulls images, ships logs, and gives containers secrets whose names begin so."""
    secret_arns = stack.account.build_arn("secretsmanager", f"secret:{secrets}*")
    return add_role(
        stack,
        names.format_deployment_purpose(deployment, "start"),
        description=f"Starts tasks of {deployment}",
        trust=build_trust_policy(stack.account),
        statements=(
            *iam.read_statements(stack, "task-start", log_group=log_group.arn),
            *registry.build_statements(stack),
            *([allow("Secrets", ["secretsmanager:GetSecretValue"], secret_arns)] if secrets else ()),
        ),
    )


def add_task_role(
    stack: FleetStack, deployment: str, part: str, description: str, statements: Sequence[Statement]
) -> aws.iam_role.IamRole:
    """Add the role that tasks of a part of a deployment act as."""
    purpose = names.format_deployment_purpose(deployment, part)
    trust = build_trust_policy(stack.account)
    return add_role(stack, purpose, description=description, trust=trust, statements=statements)


_MAX_READ_LENGTH = 7_000
"""Characters of what engines may read, of the 10,240 of a role's own policies: with many adapters they read their
buckets as a whole, as on EKS. Source: IAM user guide, "IAM and AWS STS quotas", 2026-11."""


def build_engine_statements(
    stack: FleetStack, reads: Sequence[str], caches: Sequence[str], storage_key: str
) -> list[Statement]:
    """Allow engines to read their models, s3://BUCKET/PREFIX, and to keep cached prompts."""
    tier_buckets = [row for row in stack.fleet.storage.tier_buckets if row.bucket in caches]
    statements = [
        *_build_read_statements(reads, stack.account, storage_key),
        *model_reader.build_key_statements(stack.fleet),
    ]
    if len(json.dumps(statements)) > _MAX_READ_LENGTH:
        statements = model_reader.build_statements(stack)
    return [*statements, *model_reader.build_tier_statements(stack, tier_buckets)]


def _build_read_statements(uris: Sequence[str], account: Account, storage_key: str) -> Iterator[Statement]:
    locations = [uri.removeprefix("s3://").partition("/") for uri in uris]
    object_arns = sorted(
        {account.build_bucket_arn(f"{bucket}/{prefix.rstrip('/')}/*") for bucket, _, prefix in locations}
    )
    yield allow("Read", ["s3:GetObject"], object_arns)
    for number, bucket in enumerate(sorted({bucket for bucket, _, _ in locations})):
        prefixes = sorted(prefix.rstrip("/") for bucket_name, _, prefix in locations if bucket_name == bucket)
        yield allow(
            f"List{number}",
            ["s3:ListBucket"],
            account.build_bucket_arn(bucket),
            condition={"StringLike": {"s3:prefix": [pattern for path in prefixes for pattern in (path, f"{path}/*")]}},
        )
    yield allow("Decrypt", ["kms:Decrypt"], storage_key)


def build_monitoring_statements(
    stack: FleetStack, metrics: aws.cloudwatch_log_group.CloudwatchLogGroup, cluster_key: str
) -> list[Statement]:
    """Allow to write metrics, and ECS Exec."""
    actions = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    metrics_arns = [metrics.arn, f"{metrics.arn}:*"]
    return [allow("Metrics", actions, metrics_arns), *build_exec_statements(stack, cluster_key)]


def build_exec_statements(stack: FleetStack, cluster_key: str) -> list[Statement]:
    log_group = build_exec_log_group_name(stack.fleet)
    return iam.read_statements(stack, "ecs-exec", log_group=log_group, key=cluster_key)
