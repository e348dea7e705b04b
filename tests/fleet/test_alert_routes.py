"""A real Alertmanager with the routes of a fleet: alerts reach its SNS topic, signed, and what is no alert does not."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.parse
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import processes
from llm_serving.fleet import add_ons
from llm_serving.fleet.model import AddOns, Fleet
from tests.http_handler import QuietHandler

PROGRAM = "prometheus-alertmanager"
TOPIC = "arn:aws:sns:us-west-2:123456789012:on-call"
CHARTS_OWN: dict[str, Any] = {
    "inhibit_rules": [
        {
            "source_matchers": ["severity = critical"],
            "target_matchers": ["severity =~ warning|info"],
            "equal": ["namespace", "alertname"],
        }
    ],
    "route": {
        "group_by": ["namespace"],
        "group_wait": "30s",
        "receiver": "null",
        "routes": [{"receiver": "null", "matchers": ['alertname = "Watchdog"']}],
    },
    "receivers": [{"name": "null"}],
}
"""What kube-prometheus-stack's values have, which Helm merges the fleet's over. Source: its values.yaml, 87.21.0."""


def get_chart_values(**fields: Any) -> Any:
    pools = {"general": {"types": "g6e.2xlarge", "size": "0..4"}}
    zones = ("us-west-2a", "us-west-2b")
    text = {"name": "demo", "region": "us-west-2", "zones": zones, "pools": pools, **fields}
    fleet = Fleet.model_validate(text).model_copy(update={"add_ons": AddOns(observability=True)})
    [stack] = [row for row in add_ons.select_add_ons(fleet) if row.add_on.name == "kube-prometheus-stack"]
    return stack.values["alertmanager"]


def test_without_a_topic_the_charts_own_routes_stay() -> None:
    assert get_chart_values()["config"] == {}


@pytest.mark.skipif(not shutil.which(PROGRAM), reason="needs Debian's prometheus-alertmanager")
def test_alerts_reach_the_fleets_topic(tmp_path: Path) -> None:
    published: list[tuple[str, dict[str, list[str]]]] = []

    class Sns(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            published.append((self.headers["Authorization"], urllib.parse.parse_qs(body)))
            self.respond(
                200, b"<PublishResponse><PublishResult><MessageId>1</MessageId></PublishResult></PublishResponse>"
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sns)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    values = get_chart_values(alarms_to=TOPIC)
    assert values["serviceAccount"]["name"] == "alertmanager", "to which the stack gives its role"
    config = {**CHARTS_OWN, **values["config"]}
    config["route"] = {**CHARTS_OWN["route"], **values["config"]["route"], "group_wait": "1s"}
    config["receivers"][1]["sns_configs"][0]["api_url"] = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "alertmanager.yaml").write_text(yaml.safe_dump(config))
    [port] = processes.claim_free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [PROGRAM, f"--config.file={tmp_path}/alertmanager.yaml", f"--storage.path={tmp_path}/data"]
    command += [f"--web.listen-address={address}", "--cluster.listen-address="]
    env = {**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with (tmp_path / "log").open("ab") as log:
        manager = processes.spawn(command, output=log, environment=env)
    try:
        processes.wait_until(lambda: _answers(address), "Alertmanager", 60)
        # The chart's own Watchdog always fires, and has no severity that asks for anybody.
        burns = "InferenceErrorBudgetBurns"
        _send(
            address,
            [
                ("Watchdog", "none", "mine"),
                (burns, "critical", "mine"),
                (burns, "warning", "mine"),
                (burns, "warning", "other"),
            ],
        )
        processes.wait_until(lambda: len(published) == 2, "the messages", 60)
    finally:
        processes.stop_all([manager], 5)
        server.shutdown()
    assert all("/us-west-2/sns/aws4_request" in signature for signature, _ in published)
    assert all(message["TopicArn"] == [TOPIC] for _, message in published)
    messages = {message["Subject"][0]: message["Message"][0] for _, message in published}
    assert messages.keys() == {f"FIRING {burns} mine", f"FIRING {burns} other"}, "one release silences no other"
    assert "requests fail" in messages[f"FIRING {burns} mine"]
    assert "severity = warning" not in messages[f"FIRING {burns} mine"]


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def _send(address: str, alerts: list[tuple[str, str, str]]) -> None:
    rows = [
        {
            "labels": {"alertname": name, "severity": severity, "release": release, "role": "router"},
            "annotations": {"summary": "requests fail"},
        }
        for name, severity, release in alerts
    ]
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/api/v2/alerts", json.dumps(rows).encode(), headers)
    urllib.request.urlopen(request, timeout=60).close()
