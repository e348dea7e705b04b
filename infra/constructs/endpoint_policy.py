"""Who may call AWS through a VPC's endpoints, and which buckets they reach: identities of the account or organization.

Credentials that somebody brings along are of no use in the VPC then, and weights leave for no bucket of a stranger.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import Account, FleetStack, format_expression

OPEN = "open"

_AWS_BUCKETS = (
    # Layers of images in ECR. Source: ECR user guide, "Create the Amazon S3 gateway endpoint", 2026-11.
    "prod-{region}-starport-layer-bucket",
    # Packages of Amazon Linux 2023. Source: public endpoint policies of several regions; the suffix is the same in all.
    "al2023-repos-{region}-de612dc2",
    # Systems Manager's agent. Source: Systems Manager user guide, "SSM Agent communications with S3 buckets".
    "aws-ssm-{region}",
    "amazon-ssm-{region}",
)
"""Buckets of AWS's own accounts; their readers are AWS's services, or nobody in particular."""

_KUBERNETES_BUCKETS = {
    "ap-east-2": "prod-registry-k8s-io-ap-east-1",
    "cn-north-1": "prod-registry-k8s-io-ap-east-1",
    "cn-northwest-1": "prod-registry-k8s-io-ap-east-1",
    "eu-west-2": "767373bbdcb8270361b96548387bf2a9ad0d48758c35-eu-west-2",
    "me-south-1": "prod-registry-k8s-io-me-central-1",
}
"""Where registry.k8s.io leads clients of a region, where it is not `prod-registry-k8s-io-REGION`.

Source: kubernetes/registry.k8s.io, cmd/archeio/internal/app/buckets.go, commit 093d55a, read 2026-11.
"""

_QUAY_BUCKET = "quayio-production-s3"
"""Where quay.io leads clients in us-east-1. Source: OpenShift's lists of hosts to allow, 2026-11."""


def build_s3_policy(access: str, account: Account) -> str | None:
    """Return the S3 endpoint's policy by the network's `endpoint_access`; None for open access."""
    if access == OPEN:
        return None
    own = {
        "Sid": "Own",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {
            "StringEquals": {
                **_build_condition("Principal", access, account.id),
                **_build_condition("Resource", access, account.id),
            }
        },
    }
    region = account.region
    names = [name.format(region=region) for name in _AWS_BUCKETS]
    registries = [_KUBERNETES_BUCKETS.get(region, f"prod-registry-k8s-io-{region}"), _QUAY_BUCKET]
    public_buckets = {
        "Sid": "Public",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": [account.build_bucket_arn(f"{name}/*") for name in [*names, *registries]],
    }
    return iam.build_document(own, public_buckets)


def add_policy(stack: FleetStack, name: str, service_name: str, access: str) -> str | None:
    """Add the policy of an interface endpoint, by who calls; None for open access.

    AMIs, public parameters and the images of EKS's add-ons belong to accounts of AWS, so resources are not limited.
    Not every service takes a policy: AWS is asked, and one that takes none gets none.
    """
    if access == OPEN:
        return None
    service = aws.data_aws_vpc_endpoint_service.DataAwsVpcEndpointService(
        stack, f"{name}-service", service_name=service_name, service_type="Interface"
    )
    statement = {
        "Sid": "Own",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "*",
        "Resource": "*",
        "Condition": {"StringEquals": _build_condition("Principal", access, stack.account.id_reference)},
    }
    supported = f"data.aws_vpc_endpoint_service.{service.friendly_unique_id}.vpc_endpoint_policy_supported"
    return format_expression(f"{supported} ? jsonencode({iam.build_document(statement)}) : null")


def _build_condition(subject: str, access: str, account_id: str) -> dict[str, str]:
    return {f"aws:{subject}Account": account_id} if access == "account" else {f"aws:{subject}OrgID": access}
