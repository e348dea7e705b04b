"""Who reads weights and keeps cached prompts: the statements that allow it, and on EKS the role of the engines' service
account.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infra.constructs import iam
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.iam import Statement, allow
from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet, TierBucket


def build_statements(stack: FleetStack) -> list[Statement]:
    """Allow reading the model bucket and those that the fleet names."""
    own = build_bucket_name(stack.fleet.name, "models", stack.account.id, stack.fleet.region)
    names = [own, *(row.bucket for row in stack.fleet.storage.model_buckets)]
    return [*iam.read_statements(stack, "model-reader", **_list_arns(stack, names)), *build_key_statements(stack.fleet)]


def _list_arns(stack: FleetStack, names: Iterable[str]) -> dict[str, list[str]]:
    buckets = [stack.account.build_bucket_arn(name) for name in names]
    return {"buckets": buckets, "objects": [f"{bucket}/*" for bucket in buckets]}


def build_key_statements(fleet: Fleet) -> list[Statement]:
    """Allow decrypting what is read from the further buckets that the fleet names."""
    keys = list(dict.fromkeys(row.key for row in fleet.storage.model_buckets if row.key))
    return [allow("DecryptFurtherBuckets", ["kms:Decrypt"], keys)] if keys else []


def build_tier_statements(stack: FleetStack, rows: Sequence[TierBucket]) -> list[Statement]:
    """Allow keeping cached prompts in buckets that the fleet names for them."""
    keys = sorted({row.key for row in rows if row.key})
    return iam.read_statements(stack, "cached-prompts", keys=keys, **_list_arns(stack, (row.bucket for row in rows)))


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
            *build_statements(stack),
            *build_tier_statements(stack, stack.fleet.storage.tier_buckets),
        ],
    )
