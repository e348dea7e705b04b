"""Hosts of AWS's services, ECR's registries among them."""

from __future__ import annotations


def format_registry(account: str, region: str) -> str:
    """Return the host of an account's registry in a region."""
    return f"{account}.dkr.ecr.{region}.{find_domain(region)}"


def find_domain(region: str) -> str:
    """Return the domain of AWS's services in a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
