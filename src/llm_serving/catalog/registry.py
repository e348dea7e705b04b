"""Hosts of ECR's registries."""

from __future__ import annotations


def format_registry(account: str, region: str) -> str:
    """Return the host of an account's registry in a region."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{account}.dkr.ecr.{region}.{domain}"
