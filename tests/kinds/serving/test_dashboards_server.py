"""`dashboards --open`: a real Prometheus scrapes the processes, and the page's own queries have data."""

from __future__ import annotations

import html
import http.server
import json
import re
import shutil
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.kinds.serving import dashboards_server
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from tests.kinds.serving.test_prometheus import Exporter, Monitoring, serve_pages, wait_for_data

BLUEPRINT = """\
pattern: disaggregated
model: tiny
context: 2k
roles: {prefill: {pool: general, accelerators: 1}, decode: {pool: general, replicas: 2, accelerators: 1}}
traffic: {users: 2, input_tokens: 32, output_tokens: 8}
slo: {ttft_ms: {p95: 8000}}
"""
FLEET = """\
name: demo
region: us-west-2
zones: [us-west-2a, us-west-2b]
pools: {general: {types: g6e.2xlarge, size: 0..4}}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> ServingDeployment:
    """Prefill, two decodes and a router on this machine."""
    folder = tmp_path_factory.mktemp("local")
    for name, text in (("blueprint.yaml", BLUEPRINT), ("fleet.yaml", FLEET)):
        (folder / name).write_text(text)
    (folder / "local.conf.j2").write_text('{% include "templates/local.conf.j2" %}\n')
    resolved = planning.plan_offline(folder, folder / "fleet.yaml", "local").deployment
    assert isinstance(resolved, ServingDeployment)
    return resolved


def test_each_process_is_scraped_with_the_labels_of_its_pod(deployment: ServingDeployment) -> None:
    scrapes = dashboards_server.build_settings(deployment)["scrape_configs"]
    assert [row["job_name"] for row in scrapes] == ["prefill-0", "decode-0", "decode-1", "router"]
    [router] = scrapes[-1]["static_configs"]
    environment = deployment.environment
    assert router["targets"] == [f"{environment.member_host}:{environment.ports['router-metrics']}"]
    assert router["labels"] == {
        "namespace": "serving",
        "app_kubernetes_io_instance": deployment.name,
        "app_kubernetes_io_component": "router",
        "pod": "router",
    }


@pytest.fixture
def monitoring(
    deployment: ServingDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Monitoring, str]]:
    """The page's Prometheus, with pages as of a deployment under load in place of the processes."""
    if not shutil.which("prometheus"):
        pytest.skip("needs Debian's prometheus")
    monkeypatch.setattr(dashboards_server, "SCRAPE_INTERVAL_S", 1)
    [port] = processes.claim_free_ports(1)
    services = tuple(
        service.model_copy(update={"host": "127.0.0.1", "port": port, "metrics_path": f"/{service.role}"})
        for service in deployment.services
    )
    environment = deployment.environment.model_copy(update={"ports": {}})
    moved = deployment.model_copy(update={"services": services, "environment": environment})
    exporter = Exporter()
    # No request has failed at the router: seen with vllm-router 0.1.17, which has no counter of failures until one does.
    exporter.names["router"] = {
        kind: [name for name in names if "_error" not in name] for kind, names in exporter.names["router"].items()
    }
    server = serve_pages(exporter, port)
    try:
        with dashboards_server.serve(moved, tmp_path) as running:
            yield Monitoring(moved, exporter, running.address.removesuffix("/user/index.html")), running.address
    finally:
        server.shutdown()


def read_targets(page: str) -> list[dict[str, Any]]:
    """Read the queries that the page's own script sends."""
    texts = re.findall(r'data-targets="([^"]*)"', page)
    return [target for text in texts for target in json.loads(html.unescape(text))]


def test_every_query_of_the_page_has_data(monitoring: tuple[Monitoring, str]) -> None:
    prometheus, address = monitoring
    with urllib.request.urlopen(address, timeout=60) as response:
        page = response.read().decode()
    targets = read_targets(page)
    assert len(targets) >= 20 and page.count("<figure") >= 15

    assert wait_for_data(prometheus, [target["expr"].replace("$__rate_interval", "1m") for target in targets]) == []


def test_a_page_with_too_many_series_is_left_out_and_the_others_are_taken(
    deployment: ServingDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a label takes a value from each request: Prometheus keeps its memory, and says who is too long."""
    if not shutil.which("prometheus"):
        pytest.skip("needs Debian's prometheus")
    monkeypatch.setattr(dashboards_server, "SCRAPE_INTERVAL_S", 1)
    limit = 1000
    monkeypatch.setattr(dashboards_server, "MAX_SAMPLES", limit)
    labels = ",".join(f'l{number}="x"' for number in range(dashboards_server.MAX_LABELS + 1))
    pages = {
        "/many": "".join(f'load{{request="{number}"}} 1\n' for number in range(limit + 1)),
        "/wide": f"load{{{labels}}} 1\n",
        "/full": "".join(f'load{{request="{number}"}} 1\n' for number in range(limit)),
    }
    pages["/router"] = pages["/full"]

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages[self.path].encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    services = tuple(
        service.model_copy(
            update={"name": path[1:], "host": "127.0.0.1", "port": server.server_port, "metrics_path": path}
        )
        for service, path in zip(deployment.services, pages, strict=True)
    )
    environment = deployment.environment.model_copy(update={"ports": {}})
    exploded = deployment.model_copy(update={"services": services, "environment": environment})
    try:
        with dashboards_server.serve(exploded, tmp_path) as running:
            base = running.address.removesuffix("/user/index.html")

            def query(text: str) -> dict[str, float]:
                with urllib.request.urlopen(
                    f"{base}/api/v1/query?query={urllib.parse.quote(text)}", timeout=60
                ) as answer:
                    rows = json.load(answer)["data"]["result"]
                return {row["metric"]["job"]: float(row["value"][1]) for row in rows}

            # Together: a scrape that takes too long leaves its page out until the next one.
            expected = {"many": 0, "wide": 0, "full": 1, "router": 1}, {"full": limit, "router": limit}
            processes.wait_until(
                lambda: (query("up"), query("count by (job) (load)")) == expected, "scrapes of all", 120, 1
            )
    finally:
        server.shutdown()


def test_a_prometheus_that_ends_later_ends_the_command_with_its_log(
    deployment: ServingDeployment, tmp_path: Path
) -> None:
    if not shutil.which("prometheus"):
        pytest.skip("needs Debian's prometheus")
    with dashboards_server.serve(deployment, tmp_path) as running:
        running.process.terminate()
        with pytest.raises(Unavailable) as error:
            running.wait()
    assert str(error.value) == (
        f"prometheus ended (0), and the page draws nothing more. Fix: read {tmp_path / 'prometheus.log'}."
    )


def test_without_prometheus_the_command_says_where_to_get_it(
    deployment: ServingDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as error, dashboards_server.serve(deployment, tmp_path):
        pass
    assert str(error.value) == (
        "prometheus: not found on PATH. Fix: install it: `apt-get install prometheus`, "
        "or see https://prometheus.io/download."
    )


def test_a_prometheus_that_ends_at_once_names_its_log(
    deployment: ServingDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "prometheus"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(Unavailable) as error, dashboards_server.serve(deployment, tmp_path / "data"):
        pass
    assert str(error.value) == f"prometheus ended at once. Fix: read {tmp_path / 'data' / 'prometheus.log'}."


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "--to, --open: one of the two is needed. Fix: write --to FOLDER, or --open."),
        (("--to", "out", "--open"), 2, "--to, --open: one of the two is needed. Fix: write --to FOLDER, or --open."),
        (("--open",), 1, "mine: not deployed here. Fix: run blueprint deploy mine"),
    ],
)
def test_the_command_wants_a_folder_or_a_deployment(
    options: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    for name, text in (("blueprint.yaml", BLUEPRINT), ("local.conf.j2", "")):
        (Path("mine") / name).write_text(text)
    assert main.run(["dashboards", "mine", *options]) == code
    assert capsys.readouterr().err.splitlines()[-1] == message
