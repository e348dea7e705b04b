"""When Terraform deletes a resource that others name."""

from __future__ import annotations

from infra.bindings.cdktf import TerraformResource


def keep_until_unused(resource: TerraformResource) -> None:
    """Have a resource that the fleet needs no more deleted after the change of what named it.

    By itself Terraform deletes it before, and AWS deletes nothing that is in use: the apply waits for that in vain.
    Source: Terraform and OpenTofu, transform_destroy_cbd.go.
    """
    resource.add_override("lifecycle.create_before_destroy", True)
