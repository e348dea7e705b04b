"""Where keys are: secrets of AWS Secrets Manager, which programs read; those of teams also a file of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from llm_serving.fleet.model import KeyArn, parse_arn_region
from llm_serving.services import service
from llm_serving.services.environment import Environment
from llm_serving.services.formats import FORMATS
from llm_serving.settings.document import Conflict, Settings

SecretName = Annotated[str, FORMATS["secret-name"]]


class Secret(Settings):
    """A secret of AWS Secrets Manager; only on AWS."""

    secret: SecretName
    """Its name in the fleet's account and region, or its ARN."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts it, if there is one."""


class ApiKey(Secret):
    """The secret with an endpoint's key."""

    field: Annotated[str, FORMATS["api-key-field"]] | None = None
    """Field of its JSON; default is the whole text."""


def list_read(*secrets: Secret | None) -> tuple[service.Secret, ...]:
    return tuple(service.Secret(secret=row.secret, key=row.key or "") for row in secrets if row)


class TeamKeys(Settings):
    """Where the keys of teams are: {"TEAM": ["sha256:HEX", ...]}, with "*" for an operator, who sees all teams."""

    secret: SecretName | None = None
    """Name or ARN of a secret of AWS Secrets Manager, for AWS."""

    key: KeyArn | None = None
    """ARN of the customer-managed KMS key that encrypts the secret, if there is one."""

    file: str | None = None
    """A file of mode 0600 beside the blueprint, for this machine."""

    @property
    def stored(self) -> Secret | None:
        """The secret; None where only a file is named."""
        return Secret(secret=self.secret, key=self.key) if self.secret else None

    def _check_place(self) -> Iterator[Conflict]:
        if not self.secret and not self.file:
            fix = "set secret: NAME for AWS, file: FILE for this machine"
            yield Conflict(("secret",), "keys are in a secret, or in a file", fix)


def check(keys: TeamKeys | None, key_path: tuple[str, ...], environment: Environment) -> Iterator[Conflict]:
    """Yield keys that are not where the target has them."""
    if keys is None:
        return
    conventions = environment.conventions
    if conventions.is_local and not keys.file:
        reason = "on this machine keys come from a file"
        yield Conflict((*key_path, "secret"), reason, "set file: FILE beside secret", keys.secret)
    if not conventions.is_local and not keys.secret:
        reason = f"on {conventions.title} keys come from a secret"
        yield Conflict((*key_path, "file"), reason, "set secret: NAME beside file", keys.file)


def check_region(
    secret: Secret | None, key_path: tuple[str, ...], environment: Environment, reader: str
) -> Iterator[Conflict]:
    """Yield a secret of another region: Secrets Manager's endpoint of a region has that region's secrets alone.

    Args:
        reader: who reads it, such as `a batch`.
    """
    if secret and secret.secret.startswith("arn:") and parse_arn_region(secret.secret) != environment.region:
        reason = f"{reader} on {environment.conventions.title} reads secrets of its own region, {environment.region}"
        fix = f"use a secret of {environment.region}, such as a replica of this one"
        yield Conflict((*key_path, "secret"), reason, fix, secret.secret)
