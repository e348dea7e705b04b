"""Hosts of AWS's services, ECR's registries among them."""

from __future__ import annotations


def format_registry(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.{find_domain(region)}"


def find_domain(region: str) -> str:
    """Return the domain of AWS's services in a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


_CHINESE_ENDPOINTS = frozenset(
    ("autoscaling", "ec2", "ecr.api", "ecr.dkr", "eks", "elasticfilesystem", "fsx", "sqs", "states", "sts")
)
"""Services whose endpoints have the domain of China backwards there; those of others have the domain of elsewhere, S3's
gateway too. Source: aws/aws-cdk, aws-ec2/lib/vpc-endpoint.ts, getDefaultEndpointPrefix, 2026-11."""


def format_endpoint_service(service: str, region: str) -> str:
    """Return the name by which a VPC endpoint reaches a service."""
    prefix = "cn." if region.startswith("cn-") and service in _CHINESE_ENDPOINTS else ""
    return f"{prefix}com.amazonaws.{region}.{service}"
