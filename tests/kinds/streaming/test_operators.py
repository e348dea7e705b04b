"""The properties that a job on EKS gives Kafka's own client, with the files that charts/streaming mounts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import certifi
import pytest

from llm_serving.kinds.streaming.operators import KAFKA_PROPERTIES
from tests import maven

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="shop" password="p";'


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("stream")
@maven.REQUIRED
def test_kafkas_client_takes_the_login_and_the_certificate_of_the_mounted_secrets(
    tmp_path: Path, build_program: Callable[..., list[str]]
) -> None:
    for name, file, text in (
        ("kafka-login", "sasl.jaas.config", LOGIN),
        ("kafka-ca", "ca.crt", Path(certifi.where()).read_text("utf-8")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    properties = [f"{key}={value.replace('/opt', str(tmp_path))}" for key, value in KAFKA_PROPERTIES.items()]
    command = build_program("OpenProducer", *properties)
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, LOGIN), run.stderr
