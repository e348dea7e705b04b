"""What only Terraform's own words say: expressions where a token of CDKTF's would not do, and when it deletes.

Inside an expression CDKTF writes a token bare, so text that is an argument of a function, such as user data to encode,
must carry Terraform's references instead.
"""

from __future__ import annotations

from typing import Any

from infra.bindings.cdktf import TerraformResource


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
