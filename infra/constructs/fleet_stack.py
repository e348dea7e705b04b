"""A stack of a fleet: its constructs learn from it what the fleet is, and in which account Terraform applies it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from infra.bindings import aws
from infra.bindings.cdktf import App, TerraformStack
from infra.constructs.expression import format_expression
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet


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


class FleetStack(TerraformStack):
    """One of the fleet's stacks."""

    def __init__(self, app: App, name: str, fleet: Fleet) -> None:
        super().__init__(app, name)
        self.fleet = fleet
        self.cluster_name = names.format_cluster_name(fleet)

    @cached_property
    def account(self) -> Account:
        """Account and region; its first use adds the data sources that tell them."""
        caller = aws.data_aws_caller_identity.DataAwsCallerIdentity(self, "account")
        partition = aws.data_aws_partition.DataAwsPartition(self, "partition")
        return Account(
            id=caller.account_id,
            id_reference=format_expression(f"data.aws_caller_identity.{caller.friendly_unique_id}.account_id"),
            caller=caller.arn,
            partition=partition.partition,
            dns_suffix=partition.dns_suffix,
            service_prefix=partition.reverse_dns_prefix,
            region=self.fleet.region,
        )
