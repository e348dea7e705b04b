"""Where a stack is applied, as Terraform learns it: account, partition, region."""

from __future__ import annotations

from dataclasses import dataclass

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.expression import format_expression


@dataclass(frozen=True)
class Account:
    """All but the region are tokens: unknown until Terraform runs."""

    id: str

    id_reference: str
    """The same as Terraform's reference, for text inside an expression."""

    caller: str
    """ARN of who runs Terraform: an IAM user's, or an assumed role's session."""

    partition: str
    dns_suffix: str
    """Domain of service principals: amazonaws.com, or amazonaws.com.cn."""

    service_prefix: str
    """Prefix of endpoint services: com.amazonaws, or cn.com.amazonaws."""

    region: str

    def build_arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.id}:{resource}"

    def build_bucket_arn(self, name: str) -> str:
        """Return the ARN of a bucket, or of objects: NAME/KEY."""
        return f"arn:{self.partition}:s3:::{name}"

    @property
    def root(self) -> str:
        """The account itself as a principal."""
        return f"arn:{self.partition}:iam::{self.id}:root"


def read_account(stack: TerraformStack, region: str) -> Account:
    """Add the data sources that tell account and partition; once a stack."""
    caller = aws.data_aws_caller_identity.DataAwsCallerIdentity(stack, "account")
    partition = aws.data_aws_partition.DataAwsPartition(stack, "partition")
    return Account(
        id=caller.account_id,
        id_reference=format_expression(f"data.aws_caller_identity.{caller.friendly_unique_id}.account_id"),
        caller=caller.arn,
        partition=partition.partition,
        dns_suffix=partition.dns_suffix,
        service_prefix=partition.reverse_dns_prefix,
        region=region,
    )
