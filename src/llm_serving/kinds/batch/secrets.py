"""Credentials of a batch on AWS: the blueprint names secrets of AWS Secrets Manager, which its programs read.

On this machine the same values are environment variables of the deploy.
"""

from __future__ import annotations

from typing import Annotated

from llm_serving.fleet.model import KeyArn
from llm_serving.services import service
from llm_serving.settings.document import Settings
from llm_serving.settings.units import TextFormat

SecretName = Annotated[
    str,
    TextFormat(
        # Roles name whole ARNs. Source: Secrets Manager API reference, GetSecretValue, SecretId, 2026-11.
        r"arn:aws(?:-[a-z]+)*:secretsmanager:[a-z0-9-]{1,32}:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]{1,512}-[A-Za-z0-9]{6}"
        r"|[A-Za-z0-9/_+=.@-]{1,512}",
        "the name of a Secrets Manager secret, or its whole ARN, which ends in a dash and six characters",
        "llm/api-key",
    ),
]


class Secret(Settings):
    """A secret of AWS Secrets Manager; only on AWS."""

    secret: SecretName
    """Its name in the fleet's account and region, or its ARN."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts it, if there is one."""


class ApiKey(Secret):
    """The secret with an endpoint's key."""

    field: Annotated[str, TextFormat(r"[A-Za-z0-9_.-]{1,128}", "a field of the secret's JSON", "api_key")] | None = None
    """Field of its JSON; default is the whole text."""


def list_read(*named: Secret | None) -> tuple[service.Secret, ...]:
    """List the secrets that a program may read."""
    return tuple(service.Secret(secret=row.secret, key=row.key or "") for row in named if row)
