"""A real Prometheus and Alertmanager: every panel draws what the programs publish, and an alert reaches a webhook.

The pages that Prometheus reads have the names that each program publishes (tests/catalog/published_metrics.yaml) and the
labels that the chart's PodMonitors give: a name that nothing publishes draws nothing here.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.catalog import engines
from llm_serving.kinds.serving import alerts, dashboards
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.settings.errors import Unavailable
from tests.catalog import published
from tests.http_handler import QuietHandler
from tests.kinds.serving.test_alerts import DISAGGREGATED, resolve
from tests.kinds.serving.test_dashboards import list_expressions

PROGRAMS = ("prometheus", "prometheus-alertmanager")

pytestmark = pytest.mark.skipif(
    not all(shutil.which(program) for program in PROGRAMS),
    reason="needs Debian's prometheus and prometheus-alertmanager",
)

PATHS = {
    "prefill": "vllm",
    "decode": "vllm",
    "router": "vllm-router",
    "nodes": "dcgm-exporter",
    "kube": "kube-state-metrics",
}
"""Whose names each page has."""

LABELS = {
    "nodes": '{Hostname="ip-10-0-0-1",gpu="0"}',
    "kube": '{namespace="serving",pod="mine-decode-a1",horizontalpodautoscaler="keda-hpa-mine-decode"}',
}
"""Of the pages that are no pod's of the deployment."""

FAILED_TRANSFERS = "vllm:nixl_num_failed_transfers_total"


def _load_buckets() -> dict[str, Sequence[float]]:
    """Return the edges that vLLM's histograms have, by their names."""
    engine = engines.load_engines()["vllm"]
    return {engine.metrics[signal]: edges for signal, edges in engine.buckets.items()}


@dataclass
class Exporter:
    """The pages of a deployment under load: counters grow with each scrape, and every request takes 0.3 s."""

    scrapes: int = 0
    failing: bool = False
    pages: list[dict[str, Any]] = field(default_factory=list)
    """What Alertmanager sent."""

    names: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: {path: published.read()[program]["names"] for path, program in PATHS.items()}
    )
    buckets: Mapping[str, Sequence[float]] = field(default_factory=_load_buckets)

    def render(self, path: str) -> str:
        """Return a page in Prometheus' format."""
        self.scrapes += 1
        labels, names = LABELS.get(path, '{engine="0"}'), self.names[path]
        values = dict.fromkeys((*names.get("gauge", ()), *names.get("exact", ())), 1)
        values |= {f"{name.removesuffix('_total')}_total": 1 for name in names.get("counter", ())}
        values |= {name: self.scrapes for name in values if name.endswith("_total")}
        if FAILED_TRANSFERS in values and not self.failing:
            values[FAILED_TRANSFERS] = 0
        if path == "router":  # whose counters of errors each have labels of their own
            lines = [f'{name}{{of="{name}"}} {value}' for name, value in values.items()]
        else:
            lines = [f"{name}{labels} {value}" for name, value in values.items()]
        for name in names.get("histogram", ()):
            lines += self._render_histogram(name)
        return "\n".join(lines) + "\n"

    def _render_histogram(self, name: str) -> Iterator[str]:
        for edge in (*self.buckets.get(name, (1.0,)), "+Inf"):
            yield f'{name}_bucket{{engine="0",le="{edge}"}} {self.scrapes if float(edge) >= 0.3 else 0}'
        yield f'{name}_count{{engine="0"}} {self.scrapes}'
        yield f'{name}_sum{{engine="0"}} {self.scrapes * 0.3}'


@dataclass(frozen=True)
class Monitoring:
    """A Prometheus that reads the pages, and has the deployment's rules."""

    deployment: ServingDeployment
    exporter: Exporter
    url: str

    def query(self, expression: str) -> list[Any]:
        """Return the samples of an expression, without those that are no number."""
        url = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=60) as response:
            samples = json.load(response)["data"]["result"]
        return [sample for sample in samples if sample["value"][1] != "NaN"]


def wait_for_data(monitoring: Monitoring, expressions: Sequence[str]) -> list[str]:
    """Wait until every expression has data; return those that had none at last.

    They are not asked again: a scrape that takes too long leaves what it reads without data until the next one.
    """
    empty = list(expressions)

    def has_all() -> bool:
        empty[:] = [text for text in expressions if not monitoring.query(text)]
        return not empty

    with contextlib.suppress(Unavailable):
        processes.wait_until(has_all, "data in every panel", 120)
    return empty


def serve_pages(exporter: Exporter, port: int) -> ThreadingHTTPServer:
    """Serve the pages, and take what Alertmanager sends."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.respond(200, exporter.render(self.path.strip("/")).encode(), {"Content-Type": "text/plain"})

        def do_POST(self) -> None:
            exporter.pages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.respond(200)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _build_scrapes(address: str) -> Iterator[dict[str, Any]]:
    for path in PATHS:
        labels = {
            "namespace": "serving",
            "app_kubernetes_io_instance": "mine",
            "app_kubernetes_io_component": path,
            "pod": f"mine-{path}-a1",
        }
        is_pod = path in ("prefill", "decode", "router")
        targets = [{"targets": [address], "labels": labels if is_pod else {}}]
        yield {"job_name": path, "metrics_path": f"/{path}", "static_configs": targets}


def _write_settings(folder: Path, deployment: ServingDeployment, exporter_address: str, manager: str) -> None:
    (folder / "rules.yaml").write_text(yaml.safe_dump(alerts.build_rules(deployment)))
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": list(_build_scrapes(exporter_address)),
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(prometheus))
    webhook = {"url": f"http://{exporter_address}/webhook"}
    routes = {
        "route": {"receiver": "team", "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "team", "webhook_configs": [webhook]}],
    }
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(routes))


def _build_commands(folder: Path, prometheus: int, manager: int) -> list[list[str]]:
    return [
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        ],
        [
            "prometheus-alertmanager",
            f"--config.file={folder / 'alertmanager.yaml'}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{manager}",
            "--cluster.listen-address=",
        ],
    ]


@pytest.fixture(scope="module")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    folder = tmp_path_factory.mktemp("monitoring")
    deployment = resolve(folder, DISAGGREGATED)
    exporter_port, prometheus_port, manager_port = processes.claim_free_ports(3)
    exporter = Exporter()
    server = serve_pages(exporter, exporter_port)
    _write_settings(folder, deployment, f"127.0.0.1:{exporter_port}", f"127.0.0.1:{manager_port}")
    children = []
    try:
        with (folder / "log").open("ab") as log:
            for command in _build_commands(folder, prometheus_port, manager_port):
                children.append(processes.spawn(command, output=log))
        # Three scrapes of each page: a rate takes two.
        processes.wait_until(lambda: exporter.scrapes >= 3 * len(PATHS), "three scrapes", 120)
        yield Monitoring(deployment, exporter, f"http://127.0.0.1:{prometheus_port}")
    finally:
        processes.stop_all(children, 5)
        server.shutdown()


def test_every_panel_draws_what_the_programs_publish_and_a_misspelt_name_draws_nothing(monitoring: Monitoring) -> None:
    files = dashboards.build(monitoring.deployment).files
    expressions = [text.replace("$__rate_interval", "1m") for text in list_expressions(files)]
    assert len(expressions) >= 25

    assert wait_for_data(monitoring, expressions) == []
    [known, *_] = [text for text in expressions if "vllm:num_preemptions_total" in text]
    assert monitoring.query(known)
    assert not monitoring.query(known.replace("vllm:num_preemptions_total", "vllm:num_preemptions"))


def test_an_alert_reaches_the_webhook_with_its_runbook(monitoring: Monitoring) -> None:
    exporter = monitoring.exporter
    assert not [page for page in exporter.pages if "InferenceTransfersFail" in str(page)]
    exporter.failing = True

    def list_received() -> list[dict[str, Any]]:
        received = [alert for page in exporter.pages for alert in page["alerts"]]
        return [alert for alert in received if alert["labels"]["alertname"] == "InferenceTransfersFail"]

    processes.wait_until(lambda: bool(list_received()), "the alert", 120)
    [first, *_] = list_received()
    assert first["status"] == "firing"
    assert first["labels"]["severity"] == "warning" and first["labels"]["release"] == "mine"
    assert first["annotations"]["runbook_url"].endswith("docs/runbook/InferenceTransfersFail.md")
