"""What charts/batch makes of a rendered batch: whom its pods reach, as what they run, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.services.load_balancer import StackLoadBalancer
from scripts import chart_values
from tests.charts.conftest import Helm, Render
from tests.charts.objects import list_pods
from tests.charts.test_network import DNS, IDENTITY_AGENT, SERVING, STRANGER, is_allowed
from tests.charts.test_objects import CERTIFICATE, Preset, filter_by_kind
from tests.infra import deployments
from tests.infra.batch.conftest import FLEET, ON_EKS

CHART = paths.CHARTS / "batch"

Values = dict[str, Any]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Values]:
    """What each shape is rendered to as the batch `mine`."""
    rendered = {}
    for shape, text in ON_EKS.items():
        folder = tmp_path_factory.mktemp(shape)
        (folder / "fleet.yaml").write_text(FLEET)
        blueprint_folder = deployments.write_blueprint(folder, "mine", text)
        file = deployments.render(folder, blueprint_folder, folder / "fleet.yaml", "eks")
        rendered[shape] = yaml.safe_load(file.read_text())
    return rendered


def test_an_entrys_load_balancer_lets_in_its_clients_and_writes_their_requests_to_the_bucket(
    render_chart: Render, values: dict[str, Values]
) -> None:
    row = StackLoadBalancer(
        certificate=CERTIFICATE,
        clients=("10.0.0.0/16",),
        access_logs="s3://acme-logs/edge/",
        idle_timeout_s=4000,
        drain_s=60,
    )
    for balancer, logs in ((row, 3), (row.model_copy(update={"access_logs": ""}), 0)):
        stack = {**values["pods"]["stack"], "load_balancer": balancer.model_dump()}
        [ingress] = filter_by_kind(render_chart({**values["pods"], "stack": stack}, CHART), "Ingress")
        assert ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/inbound-cidrs"] == "10.0.0.0/16"
        attributes = ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/load-balancer-attributes"].split(",")
        assert (
            attributes[2:]
            == [
                "access_logs.s3.enabled=true",
                "access_logs.s3.bucket=acme-logs",
                "access_logs.s3.prefix=edge",
            ][:logs]
        )


def find_labels(manifests: list[dict[str, Any]], service: str) -> dict[str, str]:
    labels = [pod["metadata"]["labels"] for pod in list_pods(manifests)]
    [selected] = [entry for entry in labels if entry["app.kubernetes.io/component"] == service]
    return dict(selected)


def test_what_is_in_the_network_is_called_at_its_ranges_alone(render_chart: Render, values: dict[str, Values]) -> None:
    services = [dict(service) for service in values["pods"]["services"]]
    database = {"purpose": "Keys", "port": 5432, "ranges": ["10.0.0.0/16", "100.64.0.0/16"]}
    services[0]["calls"] = {"database": database}
    manifests = render_chart({**values["pods"], "services": services}, CHART)
    policies, labels = filter_by_kind(manifests, "NetworkPolicy"), find_labels(manifests, services[0]["name"])
    reached = [
        address
        for address in ("10.0.3.4", "100.64.9.9", "10.1.3.4", "203.0.113.9")
        if is_allowed(policies, "egress", labels, address, 5432)
    ]
    assert reached == ["10.0.3.4", "100.64.9.9"]


def test_a_variable_has_every_dollar_of_its_text(render_chart: Render, values: dict[str, Values]) -> None:
    """Kubernetes makes $ of $$, and a value of $(NAME): k8s.io/kubernetes, third_party/forked/golang/expansion."""
    text = {"TEXT": "$$5 in $(HOME)"}
    services = [{**service, "env": service["env"] | text} for service in values["pods"]["services"]]
    for pod in list_pods(render_chart({**values["pods"], "services": services}, CHART)):
        assert {"name": "TEXT", "value": "$$$$5 in $$(HOME)"} in pod["spec"]["containers"][0]["env"]


def test_programs_reach_the_endpoint_and_aws_and_nobody_reaches_the_workers(
    render_chart: Render, values: dict[str, Values], preset: Preset
) -> None:
    manifests, outside = (render_chart(values[shape], CHART) for shape in ("pods", "pods-outside"))
    policies = filter_by_kind(manifests, "NetworkPolicy")
    worker, api = (find_labels(manifests, name) for name in ("batch-worker", "batch-api"))
    serving = render_chart(preset("qwen3-0.6b-g6e"))
    serving_policies = filter_by_kind(serving, "NetworkPolicy")
    router, engine = (
        {**pod["metadata"]["labels"], "app.kubernetes.io/instance": "chat"}
        for kind in ("router", "engine")
        for pod in list_pods(serving)
        if pod["metadata"]["labels"]["inference/kind"] == kind
    )
    for labels in (worker, api):
        assert is_allowed(policies, "egress", labels, (SERVING, router), 8080)
        for port, other in ((53, DNS), (443, "52.218.0.1"), (80, IDENTITY_AGENT)):
            assert is_allowed(policies, "egress", labels, other, port)
        assert not is_allowed(policies, "egress", labels, "169.254.169.254", 80), "the node's own role"
        assert not is_allowed(policies, "egress", labels, STRANGER, 8080)
    assert is_allowed(policies, "ingress", api, (SERVING, engine), 8080), "clients are the namespace's pods"
    assert not is_allowed(policies, "ingress", api, STRANGER, 8080)
    named = filter_by_kind(outside, "NetworkPolicy")
    api_outside = find_labels(outside, "batch-api")
    ads = ({"kubernetes.io/metadata.name": "ads"}, {"app": "theirs"})
    allowed = [
        is_allowed(named, "ingress", api_outside, client, 8080) for client in (ads, "10.0.1.7", (SERVING, api_outside))
    ]
    assert allowed == [True, True, True], "the clients that are named, and `helm test`"
    assert not is_allowed(named, "ingress", api_outside, (SERVING, engine), 8080), "no longer the namespace's pods"
    assert not is_allowed(policies, "ingress", api, ads, 8080)
    assert not is_allowed(policies, "ingress", worker, (SERVING, api), 8080)
    # Workers alone read the engines' metrics, by a Service with an address for each.
    assert is_allowed(policies, "egress", worker, (SERVING, engine), 8000)
    assert not is_allowed(policies, "egress", worker, (SERVING, router), 8000)
    assert not is_allowed(policies, "egress", api, (SERVING, engine), 8000)
    engine["app.kubernetes.io/instance"] = router["app.kubernetes.io/instance"] = "mine"
    client = (SERVING, {**worker, "app.kubernetes.io/instance": "batch"})
    assert is_allowed(serving_policies, "ingress", router, client, 8000)
    assert is_allowed(serving_policies, "ingress", engine, client, 8000)
    assert not is_allowed(serving_policies, "ingress", engine, (SERVING, {**client[1], **api}), 8000)
    [service] = [item for item in filter_by_kind(serving, "Service") if item["metadata"]["name"] == "mine-engines"]
    assert service["spec"]["clusterIP"] == "None"
    assert [service["spec"]["selector"].items() <= labels.items() for labels in (engine, router)] == [True, False]
    assert is_allowed(filter_by_kind(outside, "NetworkPolicy"), "egress", worker, "203.0.113.9", 6379), "the cache"
    assert not is_allowed(filter_by_kind(outside, "NetworkPolicy"), "egress", api, "203.0.113.9", 6379)


def test_pods_run_as_nobody_with_a_service_account_that_the_stack_gives_a_role(
    render_chart: Render, values: dict[str, Values]
) -> None:
    manifests = render_chart(values["pods"], CHART)
    accounts = {account["metadata"]["name"] for account in filter_by_kind(manifests, "ServiceAccount")}
    services = [service["name"] for service in values["pods"]["services"]]
    assert accounts == {f"mine-{service}" for service in services}
    for pod in list_pods(manifests):
        spec = pod["spec"]
        [container] = spec["containers"]
        assert spec["serviceAccountName"] == f"mine-{pod['metadata']['labels']['app.kubernetes.io/component']}"
        assert spec["automountServiceAccountToken"] is False
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 65532)
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert "USER 65532:65532" in (paths.IMAGES / "batch-worker" / "Dockerfile").read_text()


def test_pods_are_told_where_secrets_are_and_no_object_has_their_values(
    render_chart: Render, values: dict[str, Values]
) -> None:
    manifests = render_chart(values["pods-outside"], CHART)
    assert not {"Secret", "ConfigMap"} & {manifest["kind"] for manifest in manifests}
    secrets_by_container = {}
    for pod in list_pods(manifests):
        [container] = pod["spec"]["containers"]
        assert "envFrom" not in container
        variables = {entry["name"]: entry["value"] for entry in container["env"]}  # none is of a Secret
        document = json.loads(variables.pop("BATCH_SETTINGS"))
        assert not [name for name in variables if "_KEY" in name or "PASSWORD" in name]
        secrets_by_container[container["name"]] = (
            document["api_key"],
            document["cache"] and document["cache"]["login_secret"],
        )
    api_key = {"secret": "llm/keys", "field": "batch"}
    login = "arn:aws:secretsmanager:us-west-2:210987654321:secret:cache/login-AbCdEf"
    assert secrets_by_container == {
        "batch-api": (api_key, None),
        "batch-worker": (api_key, login),
    }


def test_a_stopped_worker_has_time_to_hand_back_its_rows_before_a_spot_node_goes(
    render_chart: Render, values: dict[str, Values]
) -> None:
    manifests = render_chart(values["pods"], CHART)
    [worker] = [pod["spec"] for pod in list_pods(manifests) if pod["metadata"]["labels"]["inference/kind"] == "worker"]
    variables = {entry["name"]: entry["value"] for entry in worker["containers"][0]["env"]}
    # Source: EC2 user guide, "Spot Instance interruption notices", 2026-11: two minutes.
    assert json.loads(variables["BATCH_SETTINGS"])["drain_s"] + 20 < worker["terminationGracePeriodSeconds"] <= 120


def test_a_rollout_waits_until_each_worker_takes_steps(render_chart: Render, values: dict[str, Values]) -> None:
    pods = list_pods(render_chart(values["pods"], CHART))
    [worker] = [pod["spec"] for pod in pods if pod["metadata"]["labels"]["inference/kind"] == "worker"]
    [container] = worker["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert container["readinessProbe"]["exec"]["command"] == ["test", "-e", variables["BATCH_READY_FILE"]]
    assert "livenessProbe" not in container, "a worker is busy for minutes at its end"
    folders = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert variables["BATCH_READY_FILE"].rpartition("/")[0] in folders, "the root is read-only"


def test_what_clients_call_is_asked_to_stop_once_none_finds_it_any_more(
    render_chart: Render, values: dict[str, Values]
) -> None:
    """Its nginx takes no connection from then on, and Services and load balancers send some for seconds."""
    pods = {
        pod["metadata"]["labels"]["inference/kind"]: pod["spec"]
        for pod in list_pods(render_chart(values["pods"], CHART))
    }
    [api], [worker] = pods["api"]["containers"], pods["worker"]["containers"]
    assert api["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}
    assert pods["api"]["terminationGracePeriodSeconds"] > 10
    assert "lifecycle" not in worker, "nobody calls it"


def test_pods_are_spread_over_nodes_and_zones_more_than_anything_but_spot(
    render_chart: Render, values: dict[str, Values]
) -> None:
    """The scheduler's score has maxSkew - 1 for every node: with 1 a node without such a pod is worth 100 more, not 14."""
    skews = {
        pod["metadata"]["labels"]["inference/kind"]: {
            rule["topologyKey"]: rule["maxSkew"] for rule in pod["spec"]["topologySpreadConstraints"]
        }
        for pod in list_pods(render_chart(values["pods"], CHART))
    }
    keys = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    assert skews == {"api": dict.fromkeys(keys, 1), "worker": dict.fromkeys(keys, 10)}


def test_the_test_runs_on_nodes_that_its_image_is_for(render_chart: Render, values: dict[str, Values]) -> None:
    """A gateway's image is for one architecture, and system nodes have the other."""
    changed = copy.deepcopy(values["pods"])
    [entry] = [service for service in changed["services"] if service.get("is_entry")]
    labels, tolerations = {"kubernetes.io/arch": "amd64"}, [{"key": "team", "value": "ads", "effect": "NoSchedule"}]
    entry["placement"] = {"labels": labels, "tolerations": tolerations}
    manifests = render_chart(changed, CHART)
    [test] = [pod["spec"] for pod in filter_by_kind(manifests, "Pod")]
    [served] = [pod["spec"] for pod in list_pods(manifests) if pod["metadata"]["labels"]["inference/kind"] == "api"]
    assert [(spec["nodeSelector"], spec["tolerations"]) for spec in (test, served)] == [(labels, tolerations)] * 2
    [test] = [pod["spec"] for pod in filter_by_kind(render_chart(values["pods"], CHART), "Pod")]
    assert not {"nodeSelector", "tolerations"} & set(test), "negative control"


def test_workers_wait_in_the_queue_of_their_pool(render_chart: Render, values: dict[str, Values]) -> None:
    queued = {}
    for deployment in filter_by_kind(render_chart(values["pods"], CHART), "Deployment"):
        labels = [deployment["metadata"]["labels"], deployment["spec"]["template"]["metadata"]["labels"]]
        queued[deployment["metadata"]["name"]] = [entry.get("kueue.x-k8s.io/queue-name") for entry in labels]
    assert queued == {"mine-batch-worker": ["cores", "cores"], "mine-batch-api": [None, None]}


def test_a_release_of_another_name_is_refused(helm: Helm, values: dict[str, Values], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values["pods"]))
    assert helm("template", "mine", str(CHART), "--values", str(file)).returncode == 0
    refused = helm("template", "other", str(CHART), "--values", str(file))
    assert (
        'name: "mine" is not the release other: the stack batch-mine gives its roles to service accounts of that name. '
        "Fix: run helm upgrade --install mine, or set fullnameOverride: mine"
    ) in refused.stderr
    assert (
        helm("template", "other", str(CHART), "--values", str(file), "--set", "fullnameOverride=mine").returncode == 0
    )
    empty = helm("template", "mine", str(CHART))
    assert "services: it is empty: nothing would run. Fix: pass -f rendered/NAME/eks/eks.yaml" in empty.stderr


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((), "at '': additional properties 'queeu' not allowed"),
        (("services", 0, "placement"), "at '/services/0/placement': additional properties 'queeu' not allowed"),
    ],
)
def test_a_key_that_the_chart_does_not_know_is_refused_with_its_path(
    helm: Helm, values: dict[str, Values], tmp_path: Path, path: tuple[Any, ...], message: str
) -> None:
    changed = copy.deepcopy(values["pods"])
    node: Any = changed
    for key in path:
        node = node[key]
    node["queeu"] = "x"
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(changed))
    assert message in helm("template", "mine", str(CHART), "--values", str(file)).stderr


OTHER: Values = {"string": "other", "integer": 3, "number": 300, "array": ["10.9.0.0/16"], "object": {"a": "b"}}
"""Another value than the rendered ones, by the type."""


def list_keys(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of a service that holds a value, and another value for it; `*` is any name."""
    for name, part in {"*": schema.get("additionalProperties"), **schema.get("properties", {})}.items():
        if isinstance(part, dict) and (*path, name)[-2:] != ("env", "*"):
            children = list(list_keys(part, (*path, name)))
            items = part.get("items", {}).get("properties", {})
            other = {**OTHER, "boolean": not part.get("default")}[part["type"]]
            yield from children or [((*path, name), [dict.fromkeys(items, "other")] if items else other)]


def set_key(node: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a key in every object that has room for it."""
    key, *rest = path
    if not rest:
        node[key] = value
    for child in node.values() if key == "*" else [node.get(key)]:
        if rest and isinstance(child, dict):
            set_key(child, tuple(rest), value)


def test_every_value_of_a_service_is_read_or_refused(helm: Helm, values: dict[str, Values], tmp_path: Path) -> None:
    """But for what the stack reads of the same file, which shows that a key that nothing reads would be found."""

    def render(changed: Values) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(changed))
        result = helm("template", "mine", str(CHART), "--namespace", "serving", "--values", str(file))
        return result.stdout or result.stderr

    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["services"]["items"]
    base = copy.deepcopy(values["pods"])
    base["services"][0]["calls"]["outside"] = {"purpose": "Answers", "port": 443}  # of no deployment: it has ranges
    rendered, unread = render(base), set()
    assert "kind: Deployment" in rendered
    for path, value in list_keys(schema):
        changed = copy.deepcopy(base)
        for service in changed["services"]:
            set_key(service, path, value)
        assert changed != base, f"nothing has room for {path}"
        if render(changed) == rendered:
            unread.add(path[-1])
    assert unread == set(chart_values.STACK_KEYS)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mounts", {"cache": {"path": "/cache"}}, "at '/services/0': additional properties 'mounts' not allowed"),
        ("is_root", True, "at '/services/0/is_root': value must be false"),
        ("name", "Batch-Worker", "at '/services/0/name': 'Batch-Worker' does not match pattern"),
        (
            "replicas",
            {"min": 2, "max": 5},
            "services: batch-worker.replicas.max: 5: nothing here scales beyond min, 2. Fix: set min: 5",
        ),
    ],
)
def test_what_the_chart_would_ignore_or_kubernetes_refuse_is_refused(
    helm: Helm, values: dict[str, Values], tmp_path: Path, key: str, value: Any, message: str
) -> None:
    changed = copy.deepcopy(values["pods"])
    changed["services"][0][key] = value
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(changed))
    assert message in helm("template", "mine", str(CHART), "--values", str(tmp_path / "values.yaml")).stderr
