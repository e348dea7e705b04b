"""The contract of the chart's values: all of them documented, and what cannot work refused with what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.conftest import CHART, Helm, Render

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()
HelmErrorGetter = Callable[[Mapping[str, Any]], str]


def build_release(overrides: Mapping[str, Any] | None = None, /, **role: Any) -> dict[str, Any]:
    """A release of one engine role, changed."""
    worker = {"kind": "engine", "command": ["serve"], **role}
    return {"model": {"served": "m"}, "roles": {"worker": worker}, **(overrides or {})}


CERTIFICATE = "arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012"
ROUTER = {"kind": "router", "command": ["route"]}


def walk_properties(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every key of the schema with its path; a role's keys once."""
    for name, subschema in schema.get("properties", {}).items():
        yield f"{path}{name}", subschema
        inner = [
            subschema,
            *subschema.get("oneOf", []),
            subschema.get("items", {}),
            subschema.get("additionalProperties") or {},
        ]
        for child in inner:
            if isinstance(child, dict):
                yield from walk_properties(child, f"{path}{name}.")


ALL_PROPERTIES = [
    *walk_properties(SCHEMA),
    *walk_properties(SCHEMA["$defs"]["role"], "role."),
    *walk_properties(SCHEMA["$defs"]["probe"], "probe."),
]


def test_every_key_is_described_in_the_schema() -> None:
    undocumented = [
        name for name, subschema in ALL_PROPERTIES if not subschema.get("description") and set(subschema) != {"$ref"}
    ]
    assert len(ALL_PROPERTIES) > 100
    # A reference is described at its target.
    assert [name for name in undocumented if name != "global"] == []


def test_values_yaml_and_the_schema_have_the_same_keys() -> None:
    keys = {name.rpartition(".")[2] for name, _ in ALL_PROPERTIES} - {"global"}
    missing = {key for key in keys if not re.search(rf"\b{key}\b", TEXT)}
    assert missing == set()
    assert set(yaml.safe_load(TEXT)) == set(SCHEMA["properties"]) - {"global"}
    role = set(SCHEMA["$defs"]["role"]["properties"]) - {"kind", "command", "workerCommand"}
    defaults = yaml.safe_load(TEXT)["defaults"]
    assert set(defaults["engine"]) == role
    assert set(defaults["router"]) == role | {"command"}


def test_every_object_of_the_schema_refuses_unknown_keys() -> None:
    def find_open_objects(schema: Any, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            if "properties" in schema and schema.get("additionalProperties") is not False:
                yield path
            for key, child in schema.items():
                yield from find_open_objects(child, f"{path}/{key}")
        if isinstance(schema, list):
            for number, child in enumerate(schema):
                yield from find_open_objects(child, f"{path}/{number}")

    assert list(find_open_objects(SCHEMA, "")) == []


# What the schema refuses. Helm says where; the words are its own.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (build_release(replcas=2), "at '/roles/worker': additional properties 'replcas' not allowed"),
        (build_release(replicas="2"), "at '/roles/worker/replicas': got string, want integer"),
        (build_release(command="serve"), "at '/roles/worker/command': got string, want array"),
        (build_release(env={"PORT": 8000}), "at '/roles/worker/env/PORT': got number, want string"),
        (build_release(port=80000), "at '/roles/worker/port': maximum: got 80,000, want 65,535"),
        (
            build_release(resources={"memory": "lots"}),
            "at '/roles/worker/resources/memory': 'lots' does not match pattern",
        ),
        (
            build_release(resources={"gpus": 8}),
            "at '/roles/worker/resources': additional properties 'gpus' not allowed",
        ),
        (build_release({"labels": {"team": "two words"}}), "at '/labels/team': 'two words' does not match pattern"),
        (
            build_release({"annotations": {"my team": "ads"}}),
            "at '/annotations': additional properties 'my team' not allowed",
        ),
        (
            build_release(mounts={"x": {"path": "/x", "claim": "Weights"}}),
            "at '/roles/worker/mounts/x/claim': 'Weights' does not match pattern",
        ),
        (
            build_release(sidecars=[{"name": "Shipper", "image": "a:1"}]),
            "at '/roles/worker/sidecars/0/name': 'Shipper' does not match pattern",
        ),
        (build_release(disruption={"maxUnavailable": "150%"}), "at '/roles/worker/disruption/maxUnavailable': 'oneOf'"),
        (build_release(kind="worker"), "at '/roles/worker/kind': value must be one of 'engine', 'router'"),
        (build_release(mounts={"x": {"path": "/x"}}), "at '/roles/worker/mounts/x': 'oneOf' failed, none matched"),
        (
            build_release({"metrics": {"engine": {"queue": "a b"}}}),
            "at '/metrics/engine/queue': 'a b' does not match pattern",
        ),
        (
            build_release({"metrics": {"engine": {"quue": "a"}}}),
            "at '/metrics/engine': additional properties 'quue' not allowed",
        ),
        (build_release({"framework": "flock"}), "at '/framework': value must be one of 'plain', 'ray', 'dynamo'"),
        (build_release({"security": {"user": 0}}), "at '/security/user': minimum: got 0, want 1"),
        (build_release({"imgae": "x:1"}), "at '': additional properties 'imgae' not allowed"),
        ({"roles": {"worker": {"command": ["serve"]}}}, "at '/roles/worker': missing property 'kind'"),
    ],
)
def test_a_wrong_type_or_an_unknown_key_is_refused_with_its_path(
    get_helm_error: HelmErrorGetter, values: dict[str, Any], message: str
) -> None:
    assert message in get_helm_error(values)


# What the schema cannot say, in the chart's own words.

NIXL = '--kv-transfer-config={"kv_connector": "NixlConnector"}'
SCALING = {"min": 1, "max": 4, "metric": "queue", "threshold": 4, "cooldownSeconds": 300, "pollingSeconds": 15}
MONITORED = {"monitoring": {"podMonitors": True}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            build_release(image="vllm/vllm-openai:latest"),
            'roles.worker.image: "vllm/vllm-openai:latest": not pinned: replicas could differ, and a rollback would have no effect. Fix: write REPOSITORY:VERSION or REPOSITORY@sha256:DIGEST',
        ),
        (
            {**build_release(), "roles": {**build_release()["roles"], "engines": build_release()["roles"]["worker"]}},
            "roles.engines: the chart has an object mine-engines of its own. Fix: choose another name",
        ),
        (
            {
                **build_release(),
                "roles": {**build_release()["roles"], "planner": build_release()["roles"]["worker"]},
                "frameworkConfig": {"planners": {"worker": {}}},
            },
            "roles.planner: the chart has an object mine-planner of its own. Fix: choose another name",
        ),
        (
            build_release(env={"A": "1"}, secretEnv={"A": {"secret": "keys", "key": "a"}}),
            "roles.worker.secretEnv.A: env has it too. Fix: remove one of the two",
        ),
        (
            build_release(ports={"http": 9000}),
            "roles.worker.ports.http: the name of roles.worker.port. Fix: choose another name",
        ),
        (
            build_release(ports={"metrics": 8000}),
            "roles.worker.ports.metrics: 8000: another port of the role. Fix: choose another number",
        ),
        (
            build_release(mounts={"cache": {"path": "/tmp", "claim": "cache"}}),
            'roles.worker.mounts.cache.path: "/tmp": the container has another volume there. Fix: choose another path',
        ),
        (
            build_release({"image": "localhost:5000/vllm"}),
            'roles.worker.image: "localhost:5000/vllm": not pinned: replicas could differ, and a rollback would have no effect. Fix: write REPOSITORY:VERSION or REPOSITORY@sha256:DIGEST',
        ),
        (
            build_release({"loadBalancer": {"certificate": CERTIFICATE, "public": True}}),
            "loadBalancer.public: true: the internet would reach the routers, and no gateway before them authenticates requests. Fix: set false, or gateway.service that authenticates",
        ),
        (
            build_release(
                {"loadBalancer": {"certificate": CERTIFICATE, "public": True, "gateway": {"service": "gateway"}}}
            ),
            "loadBalancer.public: true: the internet reaches the load balancer, and nothing filters or limits its requests. Fix: set false, or webAcl",
        ),
        (
            {**build_release(), "roles": {**build_release()["roles"], "router": {**ROUTER, "image": ""}}},
            "roles.router.image: empty: vllm-router publishes no releases. Fix: build images/router, and --set defaults.router.image=REGISTRY/router:0.1.17-15",
        ),
        (
            build_release({"image": ""}),
            "roles.worker.image: empty. Fix: pass --set image=REPOSITORY:VERSION (the first lines of a preset describe its image)",
        ),
        (
            {},
            "roles: empty: nothing would run. Fix: pass -f charts/inference/presets/PRESET.yaml, roles of your own, or route.backends",
        ),
        (
            build_release({"model": {}}),
            "model.served: empty: requests of the probes need the model's name. Fix: write the value of `model` in clients' requests",
        ),
        (
            {"model": {"served": "m"}, "roles": {"a": ROUTER, "b": ROUTER}},
            "roles: a and b are routers: a release has one endpoint. Fix: keep one router, or a release for each",
        ),
        (
            {
                "model": {"served": "m"},
                "roles": {"a": build_release()["roles"]["worker"], "b": build_release()["roles"]["worker"]},
            },
            "roles: a and b have no router: a release has one endpoint. Fix: add a role with kind: router",
        ),
        (
            {"model": {"served": "m"}, "roles": {"worker": {"kind": "engine"}}},
            "roles.worker.command: empty. Fix: write the complete command line, a list",
        ),
        (
            build_release(rollout={"maxUnavailable": "0%"}),
            "roles.worker.rollout: maxSurge and maxUnavailable are both 0: no replica could be replaced. Fix: set maxSurge: 1, with room for one replica more, or maxUnavailable: 1",
        ),
        (
            build_release(nodes=3),
            "roles.worker.workerCommand: empty: 2 of the 3 nodes of a replica run it. Fix: write their command line",
        ),
        (
            build_release(resources={"accelerator": {"name": "", "count": 2}}),
            "roles.worker.resources.accelerator.name: empty: count is 2. Fix: write nvidia.com/gpu or aws.amazon.com/neuron",
        ),
        (
            build_release(drain={"graceSeconds": 30, "preStopSeconds": 30}),
            "roles.worker.drain.graceSeconds: 30: it includes preStopSeconds, 30: requests in flight would be killed. Fix: set more than preStopSeconds",
        ),
        (
            build_release(MONITORED, autoscaling={**SCALING, "min": 5}),
            "roles.worker.autoscaling.min: 5: above max, 4. Fix: write 4 or less",
        ),
        (
            build_release(MONITORED, autoscaling={**SCALING, "metric": "kv-usage", "threshold": 80}),
            "roles.worker.autoscaling.threshold: 80: kv-usage is at most 1: it would never scale out. Fix: write 0.8",
        ),
        (
            build_release(autoscaling=SCALING),
            "roles.worker.autoscaling: it needs the metrics of PodMonitors: monitoring.podMonitors is false. Fix: set monitoring: {podMonitors: true}",
        ),
        (
            build_release(MONITORED, autoscaling={**SCALING, "min": 0}),
            "roles.worker.autoscaling.min: 0: without a router no request can start the first replica. Fix: set min: 1, or add a role with kind: router",
        ),
        (
            {
                **build_release(MONITORED),
                "roles": {**build_release(autoscaling={**SCALING, "min": 0})["roles"], "router": ROUTER},
            },
            "roles.router.probes.readiness: it requires a ready engine: while worker is scaled to zero the router would not be ready, and no request could start a replica. Fix: set readiness: {path: /liveness, body: null}",
        ),
        (
            {
                **build_release(MONITORED),
                "roles": {**build_release()["roles"], "router": {**ROUTER, "autoscaling": SCALING}},
            },
            "roles.router.autoscaling: routers have no such metrics. Fix: set replicas",
        ),
        (
            build_release({**MONITORED, "metrics": {"engine": {"queue": ""}}}, autoscaling=SCALING),
            "roles.worker.autoscaling.metric: queue: metrics.engine has no such name. Fix: pass --set metrics.engine.queue=PROMETHEUS_NAME",
        ),
        (
            build_release(
                command=["serve", NIXL], env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "$(POD_IP)"}, resources={"efa": 2}
            ),
            'roles.worker.command: its kv-transfer-config has no backend: NIXL then uses UCX, which is TCP on EFA: about 98 s to the first token instead of 1 s. Fix: write "kv_connector_extra_config": {"backends": ["LIBFABRIC"]}',
        ),
        (
            build_release(command=["serve", NIXL]),
            "roles.worker.env.VLLM_NIXL_SIDE_CHANNEL_HOST: not set: the other roles would connect to localhost. Fix: set $(POD_IP)",
        ),
        (
            build_release(resources={"efa": 2}, placement={"zones": ["us-west-2a", "us-west-2b"]}),
            "roles.worker.placement: EFA does not cross zones: these pods may be scheduled in any of us-west-2a, us-west-2b. Fix: set oneZone: true, or a single zone in zones",
        ),
        (
            build_release({"route": {"backends": [{"release": "v1", "port": 8000, "weight": 1}]}}),
            "route.gateway.name: empty: route.backends requires a Gateway. Fix: write the Gateway's name",
        ),
        (
            {"route": {"gateway": {"name": "g"}, "backends": [{"release": "v1", "port": 8000, "weight": 0}]}},
            "route.backends: all weights are 0: every request would fail. Fix: write a weight above 0",
        ),
    ],
)
def test_invalid_combinations_are_refused_with_a_fix(
    get_helm_error: HelmErrorGetter, values: dict[str, Any], message: str
) -> None:
    assert message in get_helm_error(values)


def test_all_mistakes_are_reported_at_once(get_helm_error: HelmErrorGetter) -> None:
    error = get_helm_error(build_release(image="a:latest", nodes=2, drain={"graceSeconds": 5, "preStopSeconds": 9}))
    assert [name in error for name in (".image: ", ".workerCommand: ", ".drain.graceSeconds: ")] == [True] * 3


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:v0.32.0",
        "localhost:5000/vllm:1",
        f"vllm/vllm-openai@sha256:{'0' * 64}",
        f"vllm/vllm-openai:latest@sha256:{'0' * 64}",
    ],
)
def test_a_version_or_a_digest_is_a_pin(render_chart: Render, image: str) -> None:
    manifests = render_chart(build_release(image=image))
    deployment = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a" * 46,
            f"roles.worker: the name {'a' * 46}-worker has 53 characters: labels of pods allow 52. Fix: use a shorter "
            "name of the release or role",
        ),
        (
            "qwen2.5",
            "the name qwen2.5 has a dot: Kubernetes takes no Service of such a name. Fix: use another name of the release, "
            "or pass --set fullnameOverride=NAME",
        ),
    ],
)
def test_a_release_of_whose_name_no_objects_could_be_is_refused(
    helm: Helm, tmp_path: Path, name: str, message: str
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(build_release()))
    assert message in helm("template", name, str(CHART), "--values", str(file)).stderr
