"""Clients of one AWS account and region, with limits on time, and its errors in one line each."""

from __future__ import annotations

import functools
import os
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llm_serving.settings.errors import Unavailable

DENIED_CODES = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "403", "Forbidden"}
)
"""Codes by which AWS's services say that the caller may not do this."""


EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
"""Codes by which they say that the caller was known, once."""


def create_session() -> Any:
    """A session of botocore's for boto3 to work with, which reads no service's description that this process has read.

    Each of boto3's own reads them anew: 0.1 s of CPU for S3's, 0.2 for EC2's (boto3 1.44.5).
    """
    import botocore.session

    botocore_session = botocore.session.Session()
    botocore_session.lazy_register_component(
        "data_loader", lambda: create_data_loader(botocore_session.get_config_variable("data_path"))
    )
    return botocore_session


@functools.cache
def create_data_loader(data_path: str | None) -> Any:
    """What reads the services' descriptions, botocore's own and those of a folder of the user's, each once."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


class AwsSession:
    """Clients for one region; safe to use from several threads."""

    def __init__(self, region: str) -> None:
        """Takes credentials and endpoints where every AWS tool does: environment, profile, role of the machine."""
        import boto3
        from botocore.config import Config

        self.region = region
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        with translate_errors():
            self._session = boto3.Session(botocore_session=create_session())
        self._config = Config(
            connect_timeout=5,
            read_timeout=20,
            retries={"total_max_attempts": 3, "mode": "standard"},
            # Servers other than AWS's seldom answer to BUCKET.their-name.
            s3={"addressing_style": "path" if self.read_endpoint("s3") else "auto"},
            max_pool_connections=16,
        )

    def client(self, service: str) -> Any:
        """The one client of a service. Making clients is not thread-safe; using one is."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._create_client(service)
            return self._clients[service]

    def _create_client(self, service: str) -> Any:
        return self._session.client(service, region_name=self.region, config=self._config)

    def has_credentials(self) -> bool:
        """Whether any were found; whether they are good is for AWS to say."""
        with self._lock:
            return self._session.get_credentials() is not None

    @staticmethod
    def read_endpoint(service: str) -> str | None:
        """The URL that the environment puts in the place of AWS's own for a service."""
        return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL")

    def describe_endpoint(self) -> str:
        """Who answers: AWS, or the server that the environment names."""
        url = self.client("ec2").meta.endpoint_url
        return "AWS" if is_aws(url) else f"the server at {url}"


def is_aws(url: str) -> bool:
    """Whether a URL is of AWS's own: an endpoint may also come from the environment."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".aws"))


def get_error_code(error: Any) -> str:
    """AWS's code of a refusal."""
    return str(error.response.get("Error", {}).get("Code", ""))


def format_error(error: Any) -> str:
    """A refusal in AWS's words, on one line."""
    return " ".join(f"{get_error_code(error)}: {error.response.get('Error', {}).get('Message', '')}".split())


def get_error_types() -> tuple[type[Exception], ...]:
    """What a call may raise: a refusal, no answer, or one that is none of AWS's."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return (ClientError, BotoCoreError, ResponseParserError)


@contextmanager
def translate_errors(hint: str = "") -> Iterator[None]:
    """Turns what keeps AWS from being asked into one line.

    Args:
        otherwise: what can be done without credentials, as the end of a sentence.

    Raises:
        Unavailable: no credentials, no answer, or a refusal.
    """
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError):
        raise Unavailable(
            f"no AWS credentials were found: sign in (`aws sso login`, or set AWS_PROFILE){hint}"
        ) from None
    except exceptions.ClientError as error:
        if get_error_code(error) in EXPIRED_CODES:
            raise Unavailable("the AWS credentials have expired: sign in again (`aws sso login`)") from None
        raise Unavailable(f"AWS refused {error.operation_name}: {format_error(error)}") from None
    except get_error_types() as error:  # no route, no name, no answer in time, no such profile
        raise Unavailable(f"AWS could not be asked: {' '.join(str(error).split())}") from None
