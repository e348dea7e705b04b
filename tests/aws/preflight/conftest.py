from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.document import Document, load

HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b, us-west-2c]\n"
REGION = "us-west-2"
RECORDED = boto3.Session("test", "test", region_name=REGION)
"""One session for all tests: it reads each service's model once."""


class StubbedAws(AwsSession):
    """An account whose services answer what a test has recorded, in order; any other call is an error.

    It stands in where the embedded AWS has no answer, or only one: service quotas beyond VPC's, IAM's simulator,
    reservations, usage metrics. botocore holds each recorded answer against the service's own model.
    """

    def __init__(self) -> None:
        super().__init__(REGION)
        self.stubs: dict[str, Stubber] = {}

    def _create_client(self, service: str) -> Any:
        client = RECORDED.client(service)
        self.stubs[service] = Stubber(client)
        self.stubs[service].activate()
        return client

    def stub(self, service: str) -> Stubber:
        self.client(service)
        return self.stubs[service]


@pytest.fixture
def stubbed_aws(monkeypatch: pytest.MonkeyPatch) -> StubbedAws:
    for name in [variable for variable in os.environ if variable.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return StubbedAws()


@pytest.fixture
def read_fleet(tmp_path: Path) -> Callable[..., Document[Fleet]]:
    """Reads a fleet of the pools given, after a head of name, region and zones."""

    def read(pools: str, head: str = HEAD) -> Document[Fleet]:
        file = tmp_path / "fleet.yaml"
        file.write_text(f"{head}pools:\n{pools}")
        return load(file, Fleet)

    return read


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One embedded AWS for all tests; `account` empties it for each."""
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as url:
        yield url


@pytest.fixture(scope="session")
def clients(endpoint: str) -> AwsSession:
    with pytest.MonkeyPatch.context() as environment:
        _use_endpoint(endpoint, environment)
        return AwsSession(REGION)


@pytest.fixture
def shared_account(endpoint: str, clients: AwsSession, monkeypatch: pytest.MonkeyPatch) -> AwsSession:
    """The embedded account that this process's clients talk to, for tests that change nothing in it."""
    _use_endpoint(endpoint, monkeypatch)
    return clients


@pytest.fixture
def account(endpoint: str, shared_account: AwsSession) -> AwsSession:
    """The same, emptied: seconds, for it reads its images and policies again."""
    emulator.reset(endpoint)
    return shared_account


def _use_endpoint(endpoint: str, environment: pytest.MonkeyPatch) -> None:
    for name, value in emulator.build_client_env(endpoint, REGION).items():
        environment.setenv(name, value)
