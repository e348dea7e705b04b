"""Who reads weights and keeps cached prompts: the statements that allow it, and on EKS the role of the engines' service
account.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.constructs import iam
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement, allow
from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet, TierBucket


def build_statements(fleet: Fleet, account: Account) -> list[Statement]:
    """Allow reading the model bucket and those that the fleet names; writers of results have a separate role."""
    own = build_bucket_name(fleet.name, "models", account.id, fleet.region)
    buckets = [own, *(row.bucket for row in fleet.storage.model_buckets)]
    arns = [account.build_bucket_arn(bucket) for bucket in buckets]
    return [
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": arns},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{arn}/*" for arn in arns]},
        {
            "Effect": "Allow",
            "Action": ["kms:Decrypt"],
            "Resource": account.build_arn("kms", "key/*"),
            "Condition": {"ForAnyValue:StringEquals": {"kms:ResourceAliases": f"alias/{fleet.name}-storage"}},
        },
        *build_key_statements(fleet),
    ]


def build_key_statements(fleet: Fleet) -> list[Statement]:
    """Allow decrypting what is read from the further buckets that the fleet names."""
    keys = list(dict.fromkeys(row.key for row in fleet.storage.model_buckets if row.key))
    return [allow("DecryptFurtherBuckets", ["kms:Decrypt"], keys)] if keys else []


def build_tier_statements(rows: Sequence[TierBucket], account: Account) -> list[Statement]:
    """Allow keeping cached prompts in buckets that the fleet names for them."""
    if not rows:
        return []
    arns = [account.build_bucket_arn(row.bucket) for row in rows]
    objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    keys = sorted({row.key for row in rows if row.key})
    return [
        allow("ListTiers", ["s3:ListBucket"], arns),
        allow("KeepTiers", objects, [f"{arn}/*" for arn in arns]),
        *([allow("EncryptTiers", ["kms:Decrypt", "kms:GenerateDataKey"], keys)] if keys else []),
    ]


def add_engine_role(stack: FleetStack, *, cluster: iam.Cluster) -> None:
    """Add the role of all engines on EKS, tied to one service account: an association names its account in full, so
    that a release with its own account would need Terraform for each.
    """
    iam.add_pod_role(
        stack,
        "engines",
        cluster,
        namespace=names.SERVING_NAMESPACE,
        service_account=names.ENGINE_SERVICE_ACCOUNT,
        description="Lets engines stream weights",
        statements=[
            *build_statements(stack.fleet, stack.account),
            *build_tier_statements(stack.fleet.storage.tier_buckets, stack.account),
        ],
    )
