"""Mooncake's master: one process that the release's engines alone reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from llm_serving import paths
from llm_serving.targets import render
from tests.charts import objects
from tests.charts.conftest import Render
from tests.charts.test_network import DNS, PROMETHEUS, SERVING, STRANGER, is_allowed
from tests.charts.test_objects import build_values, filter_by_kind
from tests.kinds.serving import resolving

FLEET = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools: {general: {types: g6e.12xlarge, size: 0..4}}\n"
TEXT = """\
name: mine
pattern: aggregated
model: Qwen/Qwen3-8B
roles: {worker: {pool: general, accelerators: 4, replicas: 2}}
tuning: {kv_tiers: {by: mooncake, ram: 8Gi}}
traffic: {users: 1}
slo: {}
"""


def test_engines_find_the_master_by_its_service_and_nobody_else_reaches_it(
    tmp_path: Path, render_chart: Render, schema_location: str
) -> None:
    deployment = resolving.resolve_files(tmp_path, TEXT, FLEET, "eks")
    text = render.render_text(deployment, render.find_template(paths.PATTERNS / "aggregated", "eks"))
    manifests = render_chart(yaml.safe_load(text))
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    named = {(item["kind"], item["metadata"]["name"]): item for item in manifests}
    worker = named["Deployment", "mine-worker"]["spec"]["template"]
    [engine] = worker["spec"]["containers"]
    assert '"master_server_address": "mine-pool-master:50051"' in engine["command"][4]
    assert {"name": "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "value": "$(POD_IP)"} in engine["env"]

    service = named["Service", "mine-pool-master"]["spec"]
    spec = named["Deployment", "mine-pool-master"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "never two, which know a part each"
    pod = spec["template"]
    master = pod["metadata"]["labels"]
    assert service["selector"].items() <= master.items()
    [container] = pod["spec"]["containers"]
    assert service["ports"][0]["port"] == 50051 and container["image"] == engine["image"]
    assert "--rpc_port=50051" in container["command"]
    # Qwen3-8B: 16 tokens of 36 layers x 2 heads x 128 numbers x keys and values x 2 bytes on each of four GPUs.
    blocks = 2 * 8 * 2**30 // (16 * 36 * 2 * 128 * 2 * 2)
    assert container["resources"]["limits"]["memory"] == f"{1024 + blocks * 1640 // 2**20}Mi"
    assert "--metrics_host=127.0.0.1" in container["command"], "its page empties the pool"
    assert not pod["spec"]["automountServiceAccountToken"] and pod["spec"]["securityContext"]["runAsNonRoot"]

    policies = filter_by_kind(manifests, "NetworkPolicy")
    router = named["Deployment", "mine-router"]["spec"]["template"]["metadata"]["labels"]
    engines = worker["metadata"]["labels"]
    assert is_allowed(policies, "egress", engines, (SERVING, master), 50051)
    assert is_allowed(policies, "ingress", master, (SERVING, engines), 50051)
    assert not is_allowed(policies, "ingress", master, (SERVING, engines), 9003)
    for other in ((SERVING, router), (SERVING, STRANGER[1]), STRANGER, PROMETHEUS):
        assert not is_allowed(policies, "ingress", master, other, 50051)
    assert is_allowed(policies, "ingress", engines, (SERVING, engines), 15000), "one engine reads another's memory"
    assert not is_allowed(policies, "ingress", engines, STRANGER, 15000)
    assert is_allowed(policies, "egress", master, DNS, 53)
    assert not is_allowed(policies, "egress", master, "52.218.0.1", 443)
    # What finds engines does not find it.
    assert "inference/kind" not in master and "inference/listens" not in master


def test_without_an_image_there_is_no_master_and_an_unpinned_one_is_refused(
    render_chart: Render, get_helm_error: Callable[[Any], str]
) -> None:
    assert not [item for item in render_chart(build_values()) if "pool-master" in item["metadata"]["name"]]
    error = get_helm_error(build_values(poolMaster={"image": "my/vllm"}))
    assert 'poolMaster.image: "my/vllm": not pinned' in error
