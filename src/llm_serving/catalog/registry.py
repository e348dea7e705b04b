"""Hosts of AWS's services, ECR's registries among them."""

from __future__ import annotations


def format_registry(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.{find_domain(region)}"


def find_domain(region: str) -> str:
    """Return the domain of AWS's services in a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def format_endpoint_service(service: str, region: str) -> str:
    """Return the name by which a VPC endpoint reaches a service: the domain, backwards, then region and service."""
    return ".".join((*reversed(find_domain(region).split(".")), region, service))
