"""The embedded AWS: a moto server on loopback that Terraform, boto3 and the weight streamer take for AWS."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from infra.errors import Unavailable
from scripts import processes

ACCOUNT = "123456789012"
"""The account that moto answers for unless told otherwise."""

EMULATED = (
    f"AWS is emulated by moto {importlib.metadata.version('moto')} on this machine: "
    "S3, ECR, KMS, EC2, IAM and CloudWatch keep state and answer, enforce no permission and cost nothing."
)

_PROFILE = Path(__file__).with_name("aws.ini")
_START_LIMIT_S = 60.0


def command(port: int) -> list[str]:
    """Command line of the server on 127.0.0.1:`port`."""
    return [sys.executable, "-m", "scripts.rehearsal.moto_server", "-H", "127.0.0.1", "-p", str(port)]


def environment() -> dict[str, str]:
    """Environment of the server, on top of the caller's own."""
    return {
        # Roles refer to AWS's own policies; without the copy that moto carries, attaching one fails.
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
        "MOTO_EC2_LOAD_DEFAULT_AMIS": "true",
        # Buckets are named in the path: names such as BUCKET.localhost do not resolve everywhere.
        "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true",
        # Containers are never started: state machines and functions are rehearsed without Docker.
        "MOTO_LAMBDA_STUB_ECR": "true",
        "PYTHONUNBUFFERED": "1",
    }


def client_environment(endpoint: str, region: str) -> dict[str, str]:
    """Environment that makes every AWS client talk to `endpoint`, and none to AWS.

    The keys are dummies, so a call that went to AWS all the same would be refused there.
    """
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,  # a user's own setting for S3 alone would win over the general one
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
        "AWS_ACCESS_KEY_ID": "rehearsal",
        "AWS_SECRET_ACCESS_KEY": "rehearsal",
        "AWS_SESSION_TOKEN": "",
        "AWS_PROFILE": "default",
        "AWS_CONFIG_FILE": str(_PROFILE),
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"])),
    }


def wait_ready(endpoint: str, limit_s: float) -> None:
    """Waits until the server at `endpoint` answers as moto does.

    Raises:
        Unavailable: it did not within `limit_s` seconds.
    """
    processes.wait_until(lambda: _answers(endpoint), f"the embedded AWS at {endpoint}", limit_s)


def _answers(endpoint: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{endpoint}/moto-api/config", timeout=5) as answer:
            return "batch" in json.load(answer)
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def running(data: Path) -> Iterator[str]:
    """Starts one on a free port, yields its endpoint, and ends it; all that it holds goes with it.

    Args:
        data: folder for its log, moto.log.

    Raises:
        Unavailable: it did not start; the message names the log.
    """
    port = processes.free_ports(1)[0]
    endpoint = f"http://127.0.0.1:{port}"
    log = data / "moto.log"
    data.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        server = processes.spawn(command(port), environment=environment(), output=sink)
    try:
        try:
            wait_ready(endpoint, _START_LIMIT_S)
        except Unavailable as error:
            raise Unavailable(f"{error}; what it said is in {log}") from None
        yield endpoint
    finally:
        processes.stop(server, grace_s=5)
