"""Credentials of a batch on AWS: the blueprint names secrets of AWS Secrets Manager, which its programs read.

On this machine the same values are environment variables of the deploy.
"""

from __future__ import annotations

from typing import Annotated

from llm_serving.services import service
from llm_serving.services.team_keys import Secret
from llm_serving.settings.units import TextFormat


class ApiKey(Secret):
    """The secret with an endpoint's key."""

    field: Annotated[str, TextFormat(r"[A-Za-z0-9_.-]{1,128}", "a field of the secret's JSON", "api_key")] | None = None
    """Field of its JSON; default is the whole text."""


def list_read(*named: Secret | None) -> tuple[service.Secret, ...]:
    """List the secrets that a program may read."""
    return tuple(service.Secret(secret=row.secret, key=row.key or "") for row in named if row)
