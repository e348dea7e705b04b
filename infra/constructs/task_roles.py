"""By whom tasks of a deployment are started, and as whom they act: each may do what it needs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from infra.constructs import policy
from infra.constructs.account import Account
from infra.constructs.ecs_cluster import exec_log_group
from infra.constructs.role import role
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.targets.ecs.manifest import Serving


def _trust(account: Account) -> str:
    """ECS tasks of this account alone."""
    return policy.assumed_by(
        "ecs-tasks.amazonaws.com",
        ArnLike={"aws:SourceArn": account.arn("ecs", "*")},
        StringEquals={"aws:SourceAccount": account.id},
    )


def execution(stack: Any, fleet: Fleet, serving: Serving, *, account: Account, log_group: Any) -> Any:
    """Adds the role by which ECS pulls images and ships logs.

    Source: ECS developer guide, "Amazon ECS task execution IAM role", 2026-11; narrower than AWS's own policy.
    """
    return role(
        stack,
        names.of_deployment(serving.name, "start"),
        fleet=fleet.name,
        account=account,
        description=f"Starts tasks of {serving.name}",
        trust=_trust(account),
        statements=(
            # AWS takes no resource: it hands out a password for all registries of the account.
            {"Sid": "Login", "Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": "*"},
            {
                "Sid": "Pull",
                "Effect": "Allow",
                "Action": ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                "Resource": account.arn("ecr", f"repository/{fleet.name}/*"),
            },
            {
                "Sid": "Log",
                "Effect": "Allow",
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                "Resource": f"{log_group.arn}:*",
            },
        ),
    )


def engine(
    stack: Any, fleet: Fleet, serving: Serving, *, account: Account, metrics: Any, cluster_key: str, storage_key: str
) -> Any:
    """Adds the role that engines act as: they read their models, write their metrics, and may be looked into."""
    return role(
        stack,
        names.of_deployment(serving.name, "read"),
        fleet=fleet.name,
        account=account,
        description=f"Engines of {serving.name}: read weights",
        trust=_trust(account),
        statements=(
            *_reads(serving.reads, account, storage_key),
            *_watched(fleet, account, metrics, cluster_key),
        ),
    )


def router(stack: Any, fleet: Fleet, serving: Serving, *, account: Account, metrics: Any, cluster_key: str) -> Any:
    """Adds the role that the router acts as."""
    return role(
        stack,
        names.of_deployment(serving.name, "route"),
        fleet=fleet.name,
        account=account,
        description=f"Router of {serving.name}",
        trust=_trust(account),
        statements=tuple(_watched(fleet, account, metrics, cluster_key)),
    )


def _reads(places: Sequence[str], account: Account, storage_key: str) -> Iterator[dict[str, Any]]:
    split = [place.removeprefix("s3://").partition("/") for place in places]
    objects = sorted({f"arn:{account.partition}:s3:::{bucket}/{prefix.rstrip('/')}/*" for bucket, _, prefix in split})
    yield {"Sid": "Read", "Effect": "Allow", "Action": ["s3:GetObject"], "Resource": objects}
    for number, bucket in enumerate(sorted({bucket for bucket, _, _ in split})):
        below = sorted(prefix.rstrip("/") for of, _, prefix in split if of == bucket)
        yield {
            "Sid": f"List{number}",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": f"arn:{account.partition}:s3:::{bucket}",
            "Condition": {"StringLike": {"s3:prefix": [text for one in below for text in (one, f"{one}/*")]}},
        }
    yield {"Sid": "Decrypt", "Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": storage_key}


def _watched(fleet: Fleet, account: Account, metrics: Any, cluster_key: str) -> Iterator[dict[str, Any]]:
    """Metrics, and ECS Exec, whose commands the cluster logs.

    Source: ECS developer guide, "Monitor Amazon ECS containers with ECS Exec", 2026-11.
    """
    yield {
        "Sid": "Metrics",
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        "Resource": [metrics.arn, f"{metrics.arn}:*"],
    }
    # AWS takes no resource: Session Manager's channels to the task itself.
    yield {
        "Sid": "Exec",
        "Effect": "Allow",
        "Action": [
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
        ],
        "Resource": "*",
    }
    yield {
        "Sid": "ExecLogGroups",
        "Effect": "Allow",
        "Action": ["logs:DescribeLogGroups"],
        "Resource": account.arn("logs", "log-group:*"),
    }
    yield {
        "Sid": "ExecLog",
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        "Resource": account.arn("logs", f"log-group:{exec_log_group(fleet)}:*"),
    }
    yield {"Sid": "ExecKey", "Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": cluster_key}
