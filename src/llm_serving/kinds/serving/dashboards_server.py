"""A real Prometheus that scrapes a local deployment, and serves its dashboards as a page beside its own API."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_serving import loopback, processes
from llm_serving.fleet import names
from llm_serving.kinds.serving import dashboards
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.service import LOOPBACK, Service
from llm_serving.settings.errors import Unavailable
from llm_serving.validation.pages import html_report

SCRAPE_INTERVAL_S = 5

_PROGRAM = "prometheus"
_START_S = 60.0
_LOCAL = ("deployment", "cost")
"""The dashboards whose metrics a deployment on this machine has; GPUs' exporters and CloudWatch are elsewhere."""


MAX_SAMPLES, MAX_LABELS = 20_000, 64
"""Most series of a process's page, and most labels of a series: beyond them Prometheus takes nothing of the page. The
chart's PodMonitors have the same."""


@dataclass(frozen=True)
class Server:
    """A Prometheus that runs."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        """Wait until it ends.

        Raises:
            Unavailable: always, unless interrupted: it ends by itself when it cannot go on.
        """
        code = self.process.wait()
        raise Unavailable(f"{_PROGRAM} ended ({code}), and the page draws nothing more. Fix: read {self.log}.")


@contextlib.contextmanager
def serve(deployment: ServingDeployment, folder: Path) -> Iterator[Server]:
    """Run Prometheus for the time of the block.

    Args:
        folder: for its settings, data and log.

    Raises:
        Unavailable: Prometheus is not installed, or does not start.
    """
    if not shutil.which(_PROGRAM):
        fix = "install it: `apt-get install prometheus`, or see https://prometheus.io/download"
        raise Unavailable(f"{_PROGRAM}: not found on PATH. Fix: {fix}.")
    page = folder / "page"
    page.mkdir(parents=True, exist_ok=True)
    (page / "index.html").write_text(_render_page(deployment), encoding="utf-8")
    settings = folder / "prometheus.yaml"
    settings.write_text(yaml.safe_dump(build_settings(deployment)), encoding="utf-8")
    [port] = processes.claim_free_ports(1)
    address = f"http://{LOOPBACK}:{port}"
    command = [
        *(_PROGRAM, f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={LOOPBACK}:{port}", f"--web.user-assets={page}"),
    ]
    log_file = folder / "prometheus.log"
    with log_file.open("ab") as log:
        child = processes.spawn(command, output=log)
    try:
        processes.wait_until(lambda: child.poll() is not None or _is_ready(address), _PROGRAM, _START_S)
        if child.poll() is not None:
            raise Unavailable(f"{_PROGRAM} ended at once. Fix: read {log_file}.")
        yield Server(f"{address}/user/index.html", child, log_file)
    finally:
        processes.stop(child)


def build_settings(deployment: ServingDeployment) -> dict[str, Any]:
    """Build Prometheus' settings: each process with the labels that the chart's PodMonitors give its pod."""
    scrapes = [
        {
            "job_name": service.name,
            "metrics_path": service.metrics_path,
            "sample_limit": MAX_SAMPLES,
            "label_limit": MAX_LABELS,
            "static_configs": [
                {
                    "targets": [_find_metrics_address(deployment, service)],
                    "labels": {
                        "namespace": names.SERVING_NAMESPACE,
                        "app_kubernetes_io_instance": deployment.name,
                        "app_kubernetes_io_component": service.role,
                        "pod": service.name,
                    },
                }
            ],
        }
        for service in deployment.services
        if service.metrics_path
    ]
    return {"global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s"}, "scrape_configs": scrapes}


def _find_metrics_address(deployment: ServingDeployment, service: Service) -> str:
    environment = deployment.environment
    own_port = environment.ports.get(f"{service.name}-metrics")
    return f"{environment.member_host}:{own_port}" if own_port else f"{service.host}:{service.port}"


def _render_page(deployment: ServingDeployment) -> str:
    files = dashboards.build(deployment).files
    return html_report.render_page(
        "dashboards_page.html.j2",
        Path(__file__).parent,
        deployment=deployment.name,
        dashboards=[files[name] for name in _LOCAL],
    )


def _is_ready(address: str) -> bool:
    try:
        with loopback.OPENER.open(f"{address}/-/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
