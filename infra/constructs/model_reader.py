"""Who reads weights: the statements that allow it, and on EKS the role of the engines' service account."""

from __future__ import annotations

from typing import Any

from infra.constructs import pod_identity
from infra.constructs.account import Account
from infra.constructs.role import role
from llm_serving.fleet import names
from llm_serving.fleet.aws_limits import bucket_name
from llm_serving.fleet.model import Fleet

_KEY_BY_ALIAS = "kms:ResourceAliases"


def statements(fleet: Fleet, account: Account) -> list[dict[str, Any]]:
    """Allows reading the model bucket; who writes results has a role of its own."""
    bucket = f"arn:{account.partition}:s3:::{bucket_name(fleet.name, 'models', account.id, fleet.region)}"
    return [
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": bucket},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{bucket}/*"},
        {
            "Effect": "Allow",
            "Action": ["kms:Decrypt"],
            "Resource": account.arn("kms", "key/*"),
            "Condition": {"ForAnyValue:StringEquals": {_KEY_BY_ALIAS: f"alias/{fleet.name}-storage"}},
        },
    ]


def serving_identity(stack: Any, fleet: Fleet, *, cluster: Any, account: Account) -> None:
    """Adds the role of all engines on EKS, tied to one service account: an association names its account in full, so
    that a release with an account of its own would need Terraform for each.
    """
    made = role(
        stack,
        "engines",
        fleet=fleet.name,
        account=account,
        description="Lets engines stream weights",
        trust=pod_identity.trust(names.cluster(fleet), account),
        statements=statements(fleet, account),
    )
    pod_identity.association(
        stack,
        "engines",
        cluster=cluster,
        namespace=names.SERVING,
        service_account=names.ENGINES,
        role=made,
    )
