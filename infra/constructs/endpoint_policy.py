"""Who may call AWS through a VPC's endpoints, and which buckets they reach: identities of the account or organization.

Credentials that somebody brings along are of no use in the VPC then, and weights leave for no bucket of a stranger.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import FleetStack, format_expression

OPEN = "open"

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


def build_s3_policy(stack: FleetStack, access: str) -> str | None:
    """Return the S3 endpoint's policy by the network's `endpoint_access`; None for open access."""
    if access == OPEN:
        return None
    region = stack.account.region
    bucket = _KUBERNETES_BUCKETS.get(region, f"prod-registry-k8s-io-{region}")
    owner = _describe_owner(access, stack.account.id)
    return iam.build_document(*iam.read_statements(stack, "s3-endpoint", kubernetes_bucket=bucket, **owner))


def add_policy(stack: FleetStack, name: str, service_name: str, access: str) -> str | None:
    """Add the policy of an interface endpoint, by who calls; None for open access.

    Not every service takes a policy: AWS is asked, and one that takes none gets none.
    """
    if access == OPEN:
        return None
    service = aws.data_aws_vpc_endpoint_service.DataAwsVpcEndpointService(
        stack, f"{name}-service", service_name=service_name, service_type="Interface"
    )
    owner = _describe_owner(access, stack.account.id_reference)
    policy = iam.build_document(*iam.read_statements(stack, "interface-endpoint", **owner))
    supported = f"data.aws_vpc_endpoint_service.{service.friendly_unique_id}.vpc_endpoint_policy_supported"
    return format_expression(f"{supported} ? jsonencode({policy}) : null")


def _describe_owner(access: str, account_id: str) -> dict[str, str]:
    is_account = access == "account"
    return {"owner": "Account" if is_account else "OrgID", "owner_id": account_id if is_account else access}
