"""Secrets that ECS hands to tasks when it starts them: Terraform learns where each is, and never what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from infra.bindings import aws
from infra.bindings.cdktf import TerraformStack
from infra.constructs.policy import Statement
from llm_serving.targets.ecs.manifest import BatchService, SecretSource


def find_arns(stack: TerraformStack, services: Iterable[BatchService]) -> dict[str, str]:
    """Add the lookups of secrets that have only a name; returns the ARN of each, by what its service calls it."""
    secrets = dict.fromkeys(source.secret for source in _list_sources(services))
    arns = {}
    for secret in secrets:
        if secret.startswith("arn:"):
            arns[secret] = secret
        else:
            data = aws.data_aws_secretsmanager_secret.DataAwsSecretsmanagerSecret
            arns[secret] = data(stack, f"secret-{len(arns)}", name=secret).arn
    return arns


def build_statements(services: Iterable[BatchService], arns: Mapping[str, str]) -> Iterator[Statement]:
    """Let who starts the tasks read their secrets, and decrypt them where a key of the account's own encrypts them.

    Source: ECS developer guide, "Pass Secrets Manager secrets through Amazon ECS environment variables", 2026-11.
    """
    sources = list(_list_sources(services))
    if sources:
        resources = list(dict.fromkeys(arns[source.secret] for source in sources))
        yield {"Sid": "Secrets", "Effect": "Allow", "Action": ["secretsmanager:GetSecretValue"], "Resource": resources}
    if keys := list(dict.fromkeys(source.key for source in sources if source.key)):
        yield {"Sid": "SecretKeys", "Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": keys}


def build_container_secrets(service: BatchService, arns: Mapping[str, str]) -> list[dict[str, str]]:
    """Build `secrets` of its container definition."""
    return [
        {"name": variable, "valueFrom": arns[source.secret] + (f":{source.field}::" if source.field else "")}
        for variable, source in sorted(service.secrets.items())
    ]


def _list_sources(services: Iterable[BatchService]) -> Iterator[SecretSource]:
    for service in services:
        yield from service.secrets.values()
