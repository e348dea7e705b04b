"""Secrets that services read: Terraform gets their ARNs, never their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.policy import Statement, allow
from llm_serving.services.service import Service


def find_arns(stack: TerraformStack, services: Iterable[Service]) -> dict[str, str]:
    """Add lookups of secrets that have only a name; returns the ARN of each secret, by its name in the services."""
    secrets = dict.fromkeys(row.secret for service in services for row in service.secrets)
    arns = {}
    for secret in secrets:
        if secret.startswith("arn:"):
            arns[secret] = secret
        else:
            data = aws.data_aws_secretsmanager_secret.DataAwsSecretsmanagerSecret
            arns[secret] = data(stack, f"secret-{len(arns)}", name=secret).arn
    return arns


def build_statements(service: Service, arns: Mapping[str, str], region: str) -> Iterator[Statement]:
    """Allow a service to read its secrets, and to decrypt those with a customer-managed key.

    Source: Secrets Manager user guide, "Secret encryption and decryption in AWS Secrets Manager", 2026-11.
    """
    if service.secrets:
        resources = list(dict.fromkeys(arns[row.secret] for row in service.secrets))
        yield allow("Secrets", ["secretsmanager:GetSecretValue"], resources)
    if keys := list(dict.fromkeys(row.key for row in service.secrets if row.key)):
        yield allow(
            "SecretKeys",
            ["kms:Decrypt"],
            keys,
            # In China the name ends in .cn.
            condition={"StringLike": {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com*"}},
        )
