"""Terraform's own expressions, for places where a token of CDKTF's would not do.

Inside an expression CDKTF writes a token bare, so text that is an argument of a function, such as user data to encode,
must carry Terraform's references instead.
"""

from __future__ import annotations

from typing import Any


def format_expression(text: str) -> str:
    return "${" + text + "}"


def format_reference(resource: Any, path: str) -> str:
    """Return an attribute of a resource, such as `endpoint` or `vpc_config[0].vpc_id`, as Terraform's own reference."""
    return format_expression(f"{resource.terraform_resource_type}.{resource.friendly_unique_id}.{path}")
