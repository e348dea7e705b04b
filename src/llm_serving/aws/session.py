"""Sessions: clients of one AWS account and region with time limits, and AWS's errors in one line each.

Whoever asks AWS raises `Unavailable` where it refuses, or does not answer: `translate_errors`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_serving.loopback import is_loopback
from llm_serving.settings.errors import Unavailable

DENIED_CODES = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "403", "Forbidden"}
)
"""Error codes of a call that the caller is not allowed to make."""


EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
"""Error codes of credentials that have expired."""


def create_session(env: Mapping[str, str] | None = None) -> Any:
    """Return a boto3 session that shares the services' descriptions with every other session of this process.

    Each of boto3's own sessions reads them anew: 0.1 s of CPU for S3's, 0.2 for EC2's (boto3 1.44.5).

    Args:
        env: AWS's usual variables instead of this process's own, which botocore reads by default.
    """
    import boto3

    core = create_core()
    if env is None:
        return boto3.Session(botocore_session=core)
    core.set_config_variable("profile", env.get("AWS_PROFILE"))
    core.set_config_variable("config_file", env.get("AWS_CONFIG_FILE", os.devnull))
    core.set_config_variable("credentials_file", env.get("AWS_SHARED_CREDENTIALS_FILE", os.devnull))
    return boto3.Session(
        aws_access_key_id=env.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=env.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=env.get("AWS_SESSION_TOKEN") or None,
        region_name=env.get("AWS_REGION"),
        botocore_session=core,
    )


def build_config(endpoint: str | None, **settings: Any) -> Any:
    """Build a client's botocore Config, for AWS or for another server at `endpoint`."""
    from botocore.config import Config

    is_here = endpoint is not None and is_loopback(urllib.parse.urlsplit(endpoint).netloc)
    return Config(
        # Servers other than AWS's seldom answer to BUCKET.their-name.
        s3={"addressing_style": "path" if endpoint else "auto"},
        # The embedded AWS is on this machine, whatever proxy the user has.
        proxies={} if is_here else None,
        **settings,
    )


def create_core() -> Any:
    import botocore.session

    core = botocore.session.Session()
    core.lazy_register_component("data_loader", lambda: create_data_loader(core.get_config_variable("data_path")))
    return core


@functools.cache
def create_data_loader(data_path: str | None) -> Any:
    """Return the loader of the services' descriptions, botocore's own and those of a folder of the user's."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def find_endpoint(env: Mapping[str, str], service: str) -> str | None:
    """Return the URL that variables set in place of AWS's own for a service."""
    return env.get(f"AWS_ENDPOINT_URL_{service.upper()}") or env.get("AWS_ENDPOINT_URL")


class AwsSession:
    """One account and region: endpoint, credentials and kubeconfig. Its clients are safe to use from several threads.

    Whoever talks to AWS, or starts a program that does, is passed one; nothing reads or sets the environment on the
    way. `from_environment` is the one place where the user's own settings come in.
    """

    def __init__(
        self,
        region: str,
        env: Mapping[str, str] | None = None,
        *,
        emulator: str | None = None,
        is_rehearsal: bool = False,
        kubeconfig: Path | None = None,
    ) -> None:
        """Open a session; ask nothing.

        Args:
            env: AWS's usual variables, and no others. None means this process's own, as every AWS tool reads them.
            emulator: URL of the embedded AWS where that answers.
            is_rehearsal: whether the embedded AWS was started for this command, and ends with it.
            kubeconfig: file by which the cluster is reached; the user's own where None.
        """
        self.region = region
        self.emulator = emulator
        self.is_rehearsal = is_rehearsal
        self.kubeconfig = kubeconfig
        self._env = env
        self._user_env = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._session: Any = None

    @classmethod
    def from_environment(cls, region: str) -> AwsSession:
        """Return the session of the user's own environment: variables, profile, or the role of this machine."""
        return cls(region)

    def with_emulator(self, endpoint: str) -> AwsSession:
        """Return the same settings, which lead to an embedded AWS that the user started."""
        return AwsSession(self.region, self._env, emulator=endpoint, kubeconfig=self.kubeconfig)

    def with_kubeconfig(self, kubeconfig: Path) -> AwsSession:
        """Return the same account, with a cluster of its own."""
        return AwsSession(
            self.region,
            self._env,
            emulator=self.emulator,
            is_rehearsal=self.is_rehearsal,
            kubeconfig=kubeconfig.absolute(),
        )

    @property
    def is_emulated(self) -> bool:
        """Whether the embedded AWS answers, and not AWS."""
        return self.emulator is not None

    @property
    def child_env(self) -> dict[str, str]:
        """Variables that lead a child process to the same AWS and cluster, on top of this process's own."""
        return {**(self._env or {}), **({"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {})}

    @property
    def variables(self) -> dict[str, str]:
        """The settings as AWS's usual variables, complete without those of this process."""
        if self._env is not None:
            return dict(self._env)
        return {
            "AWS_CONFIG_FILE": str(Path("~/.aws/config").expanduser()),
            "AWS_SHARED_CREDENTIALS_FILE": str(Path("~/.aws/credentials").expanduser()),
            **self._user_env,
            "AWS_REGION": self.region,
        }

    def find_endpoint(self, service: str) -> str | None:
        """Return the URL that the settings put in place of AWS's own for a service."""
        return find_endpoint(self._user_env if self._env is None else self._env, service)

    def client(self, service: str) -> Any:
        """Return the one client of a service. Making clients is not thread-safe; using one is."""
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._create_client(service)
            return self._clients[service]

    def create_client(self, service: str, config: Any) -> Any:
        """Return a client of its own, with further settings: a botocore Config."""
        with self._lock:
            return self._create_client(service, config)

    def _create_client(self, service: str, settings: Any = None) -> Any:
        custom_endpoint = self.find_endpoint(service)
        config = build_config(
            custom_endpoint,
            connect_timeout=5,
            read_timeout=20,
            retries={"total_max_attempts": 3, "mode": "standard"},
            max_pool_connections=16,
        )
        endpoint = None if self._env is None else custom_endpoint
        config = config.merge(settings) if settings else config
        return self._open().client(service, region_name=self.region, endpoint_url=endpoint, config=config)

    def _open(self) -> Any:
        if self._session is None:
            with translate_errors():
                self._session = create_session(self._env)
        return self._session

    def has_credentials(self) -> bool:
        """Return whether there are any; only AWS knows whether they are valid.

        Raises:
            Unavailable: some are missing, such as the secret key beside the access key's id.
        """
        with self._lock, translate_errors():
            return self._open().get_credentials() is not None

    def describe_endpoint(self) -> str:
        """Return who answers: AWS, or the server that the settings name."""
        url = self.client("ec2").meta.endpoint_url
        return "AWS" if is_aws(url) else f"the server at {url}"


def is_aws(url: str) -> bool:
    """Return whether a URL is one of AWS's own."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".aws"))


def list_all(client: Any, operation: str, key: str, **request: Any) -> list[Any]:
    """Return the entries of all pages of an operation's answer."""
    entries: list[Any] = client.get_paginator(operation).paginate(**request).build_full_result().get(key, [])
    return entries


def split(entries: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the entries in parts of as many as one call takes."""
    return (entries[start : start + size] for start in range(0, len(entries), size))


def get_error_code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def format_error(error: Any) -> str:
    """Return an error response in AWS's words, on one line."""
    return " ".join(f"{get_error_code(error)}: {error.response.get('Error', {}).get('Message', '')}".split())


def format_options(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters of a call as options of the AWS CLI."""
    for name, value in parameters.items():
        yield f"--{re.sub('(?<!^)(?=[A-Z])', '-', name).lower()}"
        if value is not True:
            yield value if isinstance(value, str) else json.dumps(value)


def get_error_types() -> tuple[type[Exception], ...]:
    """Return the exceptions of a call: an error response, no response, or one that is not AWS's."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    return (ClientError, BotoCoreError, ResponseParserError)


@contextmanager
def ignore_errors(*codes: str) -> Iterator[None]:
    """Go on after the block where AWS answers it with an error whose code begins with one of these."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        if not get_error_code(error).startswith(codes):
            raise


@contextmanager
def translate_errors(hint: str = "") -> Iterator[None]:
    """Turn every reason why AWS cannot be asked into one line.

    Args:
        hint: what can be done without credentials, as the end of a sentence.

    Raises:
        Unavailable: no credentials, no answer, or a refusal.
    """
    from botocore import exceptions

    try:
        yield
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError):
        raise Unavailable(
            f"no AWS credentials found. Fix: sign in (`aws sso login`), or set AWS_PROFILE{hint}."
        ) from None
    except exceptions.ClientError as error:
        if get_error_code(error) in EXPIRED_CODES:
            raise Unavailable("the AWS credentials have expired. Fix: sign in again (`aws sso login`).") from None
        raise Unavailable(f"AWS refused {error.operation_name}: {format_error(error)}") from None
    except get_error_types() as error:  # no route, no name, no answer in time, no such profile
        raise Unavailable(f"AWS could not be asked: {' '.join(str(error).split())}") from None
