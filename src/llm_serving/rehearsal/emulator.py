"""The embedded AWS: a moto server on loopback that Terraform, boto3 and the weight streamer take for AWS."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import secrets
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_serving import processes
from llm_serving.aws import session
from llm_serving.settings.errors import Unavailable

ACCOUNT = "123456789012"
"""moto's default account."""

EMULATION_NOTE = (
    f"AWS is emulated by moto {importlib.metadata.version('moto')} on this machine: "
    "S3, ECR, KMS, EC2, Auto Scaling, ECS, EKS, IAM, SQS, Cloud Map and CloudWatch keep state and answer, enforce no "
    "permission and cost nothing."
)

DUMMY_KEY = "rehearsal"
"""Stands for access key and secret: moto checks neither, and AWS would refuse it."""

ACCESS_KEY_VARIABLE = "BLUEPRINT_EMULATOR_KEY"
"""Has the access key that the server requires; without it the server asks for none."""

_access_keys: dict[str, str] = {}
"""Of servers that require one, by endpoint."""

CONFIG_FILE = Path(__file__).with_name("aws.ini")
"""An AWS configuration with none of the user's settings."""

_START_LIMIT_S = 120.0


def build_command(port: int) -> list[str]:
    """Return the command line of the server on 127.0.0.1:`port`."""
    return [sys.executable, "-m", "llm_serving.rehearsal.moto_server", "-H", "127.0.0.1", "-p", str(port)]


def require_access_key(endpoint: str, access_key: str) -> dict[str, str]:
    """Have this process's clients of `endpoint` sign with an access key; return what makes the server require it."""
    _access_keys[endpoint] = access_key
    return {ACCESS_KEY_VARIABLE: access_key}


def get_access_key(endpoint: str) -> str:
    """Return the access key for clients of `endpoint`."""
    return _access_keys.get(endpoint, DUMMY_KEY)


def build_server_env(*, bare: bool = False) -> dict[str, str]:
    """Return the environment of the server, on top of the caller's own; see `start`."""
    load_defaults = "false" if bare else "true"
    return {
        # Roles refer to AWS's own policies; without the copy that moto carries, attaching one fails.
        "MOTO_IAM_LOAD_MANAGED_POLICIES": load_defaults,
        "MOTO_EC2_LOAD_DEFAULT_AMIS": load_defaults,
        # Buckets are named in the path: names such as BUCKET.localhost do not resolve everywhere.
        "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true",
        # Containers are never started: state machines and functions are rehearsed without Docker.
        "MOTO_LAMBDA_STUB_ECR": "true",
        "PYTHONUNBUFFERED": "1",
    }


def build_client_env(endpoint: str, region: str) -> dict[str, str]:
    """Return the environment that makes every AWS client talk to `endpoint`, and none to AWS.

    The keys are dummies, so a call that went to AWS all the same would be refused there.
    """
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,  # a user's own setting for S3 alone would win over the general one
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
        **_build_settings(region, get_access_key(endpoint)),
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        **build_no_proxy(),
    }


def build_no_proxy(*hosts: str) -> dict[str, str]:
    """Return the variables by which programs ask this machine without a proxy, and what the user's own name.

    Of two spellings Python and curl read the lower one, which the user may have.

    Args:
        hosts: addresses of this machine beside the usual ones.
    """
    names = ["NO_PROXY", *(["no_proxy"] if "no_proxy" in os.environ else [])]
    direct_hosts = filter(None, [*map(os.environ.get, names), "127.0.0.1", "localhost", *hosts])
    return dict.fromkeys(names, ",".join(dict.fromkeys(direct_hosts)))


def _build_settings(region: str, access_key: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": DUMMY_KEY,
        "AWS_SESSION_TOKEN": "",
        "AWS_PROFILE": "default",
        "AWS_CONFIG_FILE": str(CONFIG_FILE),
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_REGION": region,
    }


def open_session(endpoint: str, region: str, *, is_rehearsal: bool = False) -> session.AwsSession:
    """Return a session of the embedded AWS at `endpoint`, with nothing of the user's settings.

    Args:
        is_rehearsal: whether the embedded AWS was started for this command, and ends with it.
    """
    return session.AwsSession(region, build_client_env(endpoint, region), emulator=endpoint, is_rehearsal=is_rehearsal)


def is_reachable(endpoint: str) -> bool:
    """Return whether an embedded AWS responds at `endpoint`."""
    try:
        return "lambda" in json.loads(_request_moto(endpoint, "config"))
    except (OSError, ValueError):
        return False


def reset(endpoint: str) -> None:
    """Empty it, to the state of a new account."""
    _request_moto(endpoint, "reset", b"")


def _request_moto(endpoint: str, path: str, body: bytes | None = None) -> bytes:
    """Send GET, or POST with a body, to moto's own API; never through a proxy."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Credential={get_access_key(endpoint)}/"}
    request = urllib.request.Request(f"{endpoint}/moto-api/{path}", data=body, headers=headers)
    with direct.open(request, timeout=30) as response:
        return bytes(response.read())


def create_client(service: str, endpoint: str, region: str) -> Any:
    """Return a boto3 client for the server at `endpoint`, whatever AWS settings the user has."""
    config = session.build_config(endpoint, retries={"total_max_attempts": 2})
    with _CLIENT_LOCK:
        return _create_session(region, get_access_key(endpoint)).client(service, endpoint_url=endpoint, config=config)


_CLIENT_LOCK = threading.Lock()
"""A session creates one client at a time."""


@functools.cache
def _create_session(region: str, access_key: str) -> Any:
    return session.create_session(_build_settings(region, access_key))


@contextlib.contextmanager
def start(data: Path, *, bare: bool = False) -> Iterator[str]:
    """Start one on a free port, yield its endpoint, and end it; all that it holds goes with it.

    It requires an access key that clients of this process have: other users of the machine reach its port, too.

    Args:
        data: folder for its log, moto.log.
        bare: without AWS's own policies and machine images, which it reads anew, for a second or two, when emptied.

    Raises:
        Unavailable: it did not start; the message names the log.
    """
    port = processes.claim_free_ports(1)[0]
    endpoint = f"http://127.0.0.1:{port}"
    environment = build_server_env(bare=bare) | require_access_key(endpoint, secrets.token_hex(16))
    log = data / "moto.log"
    data.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        server = processes.spawn(build_command(port), environment=environment, output=sink)
    try:
        try:
            processes.wait_until(lambda: is_reachable(endpoint), f"the embedded AWS at {endpoint}", _START_LIMIT_S)
        except Unavailable as error:
            raise Unavailable(f"{error}; what it said is in {log}") from None
        yield endpoint
    finally:
        processes.stop(server, grace_s=5)
