"""The hub's token from AWS Secrets Manager; HF_TOKEN and the file of `hf auth login` are read by the hub's client."""

from __future__ import annotations

import functools
import os

from llm_serving.aws import session
from llm_serving.aws.session import AwsSession
from llm_serving.settings.errors import InputError, Unavailable, quote_value

SECRET = "HF_TOKEN_SECRET"
"""Environment variable with the name or ARN of a secret in AWS Secrets Manager, whose text is the token."""


def find() -> str | None:
    """Return the token in the secret that the environment names; None if it names none.

    HF_TOKEN comes first.

    Raises:
        InputError: the region of a secret is not known, or it holds no text.
        Unavailable: AWS has no such secret, or refuses it.
    """
    name = os.environ.get(SECRET, "")
    return _read_token(name) if name and not os.environ.get("HF_TOKEN") else None


@functools.cache
def _read_token(name: str) -> str:
    arn = name.split(":")
    region = arn[3] if len(arn) > 3 else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise InputError(
            f"{SECRET}: {quote_value(name)}: its region is not known. Fix: write its ARN, or set AWS_REGION."
        )
    try:
        with session.translate_errors():
            answer = AwsSession.from_environment(region).client("secretsmanager").get_secret_value(SecretId=name)
    except Unavailable as error:
        fix = (
            ""
            if "Fix: " in str(error)
            else " Fix: name a secret that exists, and allow secretsmanager:GetSecretValue on it."
        )
        raise Unavailable(f"{SECRET}: {quote_value(name)} in {region}: {str(error).rstrip('.')}.{fix}") from None
    text = str(answer.get("SecretString", "")).strip()
    if not text:
        raise InputError(f"{SECRET}: {quote_value(name)}: it holds no text. Fix: use a secret whose text is the token.")
    return text
