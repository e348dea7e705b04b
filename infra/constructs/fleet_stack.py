"""A stack of a fleet: its constructs learn from it what the fleet is, and in which account Terraform applies it.

Inside an expression CDKTF writes a token bare, so text that is an argument of a function, such as user data to encode,
must carry Terraform's references instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from infra.bindings import aws
from infra.bindings.cdktf import App, TerraformResource, TerraformStack
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

    region: str

    def build_arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.id}:{resource}"

    def build_bucket_arn(self, name: str) -> str:
        """Return the ARN of a bucket, or of objects: NAME/KEY."""
        return f"arn:{self.partition}:s3:::{name}"


class FleetStack(TerraformStack):
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
            region=self.fleet.region,
        )


def format_expression(text: str) -> str:
    return "${" + text + "}"


def format_reference(resource: Any, path: str) -> str:
    """Return an attribute of a resource, such as `endpoint` or `vpc_config[0].vpc_id`, as Terraform's own reference."""
    return format_expression(f"{resource.terraform_resource_type}.{resource.friendly_unique_id}.{path}")


def keep_until_unused(resource: TerraformResource) -> None:
    """Have a resource that the fleet needs no more deleted after the change of what named it.

    By itself Terraform deletes it before, and AWS deletes nothing that is in use: the apply waits for that in vain.
    Source: Terraform and OpenTofu, transform_destroy_cbd.go.
    """
    resource.add_override("lifecycle.create_before_destroy", True)
