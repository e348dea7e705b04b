"""Credentials of the programs on AWS: secrets of AWS Secrets Manager, which they read themselves.

A secret is read when a program starts, and again when its value is refused, so a new value needs no restart. Values
stay in memory: no state, task definition, Kubernetes object or log has them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from batch.settings import Settings
from batch.store import create_client, get_code

log = logging.getLogger("batch-secrets")

RENEW_INTERVAL_S = 10.0
"""Minimum seconds between two reads of a refused key."""

_FIXES = {
    "ResourceNotFoundException": "create it in the region of the fleet, and deploy again",
    "InvalidRequestException": "restore it if it was deleted",
    "AccessDeniedException": (
        "deploy again if it was deleted and created since, which changes its ARN; write `key: ARN` beside it if a "
        "KMS key of your own encrypts it"
    ),
}
"""Reason and fix, by the code of AWS's error."""


class Unreadable(Exception):
    """A secret cannot be read; the text has the reason and the fix."""


class Secret:
    """A secret of AWS Secrets Manager."""

    def __init__(self, name: str) -> None:
        """Name a secret; it is read later.

        Args:
            name: or its ARN.
        """
        self._name, self._secretsmanager = name, create_client("secretsmanager")

    def read(self) -> str:
        """Read the text of its current version.

        Raises:
            Unreadable: it is missing, forbidden for this program, or not a text.

        Source: Secrets Manager API reference, GetSecretValue, 2026-11.
        """
        try:
            text = self._secretsmanager.get_secret_value(SecretId=self._name).get("SecretString")
        except ClientError as error:
            fix = _FIXES.get(get_code(error), "`aws secretsmanager describe-secret` shows its state")
            raise self._build_error(str(error), fix) from None
        except BotoCoreError as error:
            raise self._build_error(
                str(error), "let the network reach Secrets Manager, and the program its role"
            ) from None
        if not text:
            raise self._build_error("it has bytes in place of a text", "store it as a text (SecretString)")
        return str(text)

    def read_fields(self, *fields: str) -> tuple[str, ...]:
        """Read fields of its JSON, all from the same version.

        Raises:
            Unreadable: as `read`, or it lacks one.
        """
        try:
            values: Any = json.loads(self.read())
        except (ValueError, RecursionError):
            values = None
        for field in fields:
            value = values.get(field) if isinstance(values, dict) else None
            if not value or not isinstance(value, str):
                example = ", ".join(f'"{name}": "..."' for name in fields)
                raise self._build_error(f"it is not JSON with a text `{field}`", f"store {{{example}}}")
        return tuple(values[field] for field in fields)

    def _build_error(self, reason: str, fix: str) -> Unreadable:
        return Unreadable(f"secret {self._name}: {reason.rstrip('.')}. Fix: {fix}.")


class ApiKey:
    """The endpoint's bearer token, from a secret or the environment; empty for none."""

    def __init__(self, settings: Settings) -> None:
        """Read the token.

        Raises:
            Unreadable: its secret cannot be read.
        """
        self._field, self._lock = settings.api_key.field if settings.api_key else "", threading.Lock()
        self._secret = Secret(settings.api_key.secret) if settings.api_key else None
        self.value = self._read(self._secret) if self._secret else settings.plain_api_key
        self._read_at = time.monotonic()

    def renew(self, refused: str) -> bool:
        """Read the secret again, at most every RENEW_INTERVAL_S; returns whether the key changed."""
        with self._lock:
            is_due = time.monotonic() - self._read_at >= RENEW_INTERVAL_S
            if self._secret and self.value == refused and is_due:
                self._read_at = time.monotonic()
                try:
                    self.value = self._read(self._secret)
                except Unreadable as error:
                    log.warning("%s", error)
            return self.value != refused

    def _read(self, secret: Secret) -> str:
        # A text from a file ends in a line break, which headers do not allow.
        return secret.read_fields(self._field)[0] if self._field else secret.read().strip()
