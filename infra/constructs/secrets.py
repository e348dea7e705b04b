"""Secrets that services read: Terraform gets their ARNs, never their values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack
from infra.constructs.policy import Statement, allow
from llm_serving.services.service import Secret, Service


def find_arns(stack: FleetStack, secrets: Iterable[Secret]) -> dict[str, str]:
    """Add lookups of secrets that have only a name; returns the ARN of each secret, by its name."""
    arns = {}
    for secret in dict.fromkeys(row.secret for row in secrets):
        if secret.startswith("arn:"):
            arns[secret] = secret
        else:
            data = aws.data_aws_secretsmanager_secret.DataAwsSecretsmanagerSecret
            arns[secret] = data(stack, f"secret-{len(arns)}", name=secret).arn
    return arns


def find_service_arns(stack: FleetStack, services: Iterable[Service]) -> dict[str, str]:
    """Add lookups of the secrets that services read; returns the ARN of each secret, by its name."""
    return find_arns(stack, (secret for service in services for secret in service.secrets))


def build_statements(secrets: Collection[Secret], arns: Mapping[str, str], region: str) -> Iterator[Statement]:
    """Allow to read secrets, and to decrypt those with a customer-managed key.

    Source: Secrets Manager user guide, "Secret encryption and decryption in AWS Secrets Manager", 2026-11.
    """
    if secrets:
        resources = list(dict.fromkeys(arns[row.secret] for row in secrets))
        yield allow("Secrets", ["secretsmanager:GetSecretValue"], resources)
    if keys := list(dict.fromkeys(row.key for row in secrets if row.key)):
        yield allow(
            "SecretKeys",
            ["kms:Decrypt"],
            keys,
            # In China the name ends in .cn.
            condition={"StringLike": {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com*"}},
        )
