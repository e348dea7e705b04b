"""What a batch on AWS logs in with: the blueprint names secrets of AWS Secrets Manager, and never says their values.

On this machine the same values are environment variables of the deploy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from llm_serving.fleet.model import KeyArn
from llm_serving.settings.document import Settings
from llm_serving.settings.units import TextFormat
from llm_serving.workloads.environment import ResolvedData

API_KEY = "BLUEPRINT_API_KEY"
"""The endpoint's bearer token, as both programs read it."""

LOGIN = {"BATCH_CACHE_USERNAME": "username", "BATCH_CACHE_PASSWORD": "password"}
"""What logs in to the cache: variables of the worker, and the fields of the secret's JSON that they are."""

SecretName = Annotated[
    str,
    TextFormat(
        # ECS takes whole ARNs alone. Source: ECS API reference, Secret, valueFrom, 2026-11.
        r"arn:aws(?:-[a-z]+)*:secretsmanager:[a-z0-9-]{1,32}:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]{1,512}-[A-Za-z0-9]{6}"
        r"|[A-Za-z0-9/_+=.@-]{1,512}",
        "the name of a Secrets Manager secret, or its whole ARN, which ends in a dash and six characters",
        "llm/api-key",
    ),
]


class Secret(Settings):
    """A secret of AWS Secrets Manager; on AWS alone."""

    secret: SecretName
    """Its name in the fleet's account and region, or its ARN."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts it, if there is one."""


class ApiKey(Secret):
    """The secret with an endpoint's key."""

    field: Annotated[str, TextFormat(r"[A-Za-z0-9_.-]{1,128}", "a field of the secret's JSON", "api_key")] | None = None
    """Field of its JSON; the whole text is the key where left out."""


class SecretValue(ResolvedData):
    """Where the value of a variable is."""

    secret: str
    """Name or ARN."""

    field: str
    """Of its JSON; empty for the whole text."""

    key: str
    """ARN of the KMS key that encrypts it; empty for the one that AWS manages."""


def resolve_api_key(api_key: ApiKey | None) -> Mapping[str, SecretValue]:
    """What workers and the Batch API are given, by variable."""
    return {API_KEY: _resolve(api_key, api_key.field or "")} if api_key else {}


def resolve_login(login: Secret | None) -> Mapping[str, SecretValue]:
    """What workers alone are given, by variable."""
    return {variable: _resolve(login, field) for variable, field in LOGIN.items()} if login else {}


def _resolve(secret: Secret, field: str) -> SecretValue:
    return SecretValue(secret=secret.secret, field=field, key=secret.key or "")
