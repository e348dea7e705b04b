"""A real API server takes every object that the chart makes, and the real scheduler finds a place for its pods.

Of LeaderWorkerSets, ScaledObjects, PodMonitors, rules and routes the server knows the schema alone: what their controllers
make of them is not seen here. The pods of a LeaderWorkerSet are made from its templates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from llm_serving import paths, processes
from llm_serving.catalog import instances
from llm_serving.fleet.loading import read
from llm_serving.targets.matrix import Cell
from llm_serving.workloads.serving.placement import DEVICES
from tests.charts import objects, test_patterns
from tests.charts.conftest import Render
from tests.charts.test_presets import NAMES, each_preset
from tests.control_plane import machines
from tests.control_plane.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(120, func_only=True)  # the fixture may wait for a build

Preset = Callable[[str], dict[str, Any]]
Object = Mapping[str, Any]

MORE = {
    "monitoring": {"podMonitors": True, "rules": True},
    "route": {"gateway": {"name": "edge", "namespace": "gateway", "section": ""}},
    "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "ads"}}}]},
}
"""What presets leave to the user."""

ACCOUNT = "pods"
"""Stands for the service accounts that pods name, which must be there."""

LEVELS = ("restricted", "baseline", "privileged")
"""Of Pod Security, the strictest first."""


@pytest.fixture(scope="module")
def serving(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with a namespace under each level of Pod Security, called as the level."""
    made = [one for level in LEVELS for one in namespace(level, **{"pod-security.kubernetes.io/enforce": level})]
    control_plane.do("create", "--filename=-", told=made)
    return control_plane


def namespace(name: str, **labels: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": name}},
    ]


def mistakes(cluster: ControlPlane, made: Sequence[Object], where: str) -> list[str]:
    """What the API server has against objects, were they made in a namespace."""
    assert made
    return cluster.against([{**one, "metadata": {**one["metadata"], "namespace": where}} for one in made])


def pods(made: Sequence[Object], case: str = "case") -> list[dict[str, Any]]:
    """All pods of a release, as controllers would make them, in the case's namespace and for its machines alone."""
    found: list[dict[str, Any]] = []
    for one in made:
        for template in objects.pods([one]):
            spec = {**template["spec"], "serviceAccountName": ACCOUNT}
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), "case": case}
            # A user's claim is not there, and what it would have a pod wait for is not the scheduler's matter.
            spec["volumes"] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" not in volume]
            spec["containers"] = [{**spec["containers"][0], "volumeMounts": []}]
            for _ in range(one["spec"].get("replicas", 1)):
                metadata = {**template["metadata"], "name": f"pod-{len(found)}", "namespace": case}
                found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


@each_preset
def test_the_api_server_takes_each_object_of_a_preset(
    serving: ControlPlane, rendered: Render, preset: Preset, name: str
) -> None:
    assert mistakes(serving, rendered({**preset(name), **MORE}), "privileged") == []


@test_patterns.each_cell
def test_the_api_server_takes_each_object_of_a_pattern(serving: ControlPlane, rendered: Render, cell: Cell) -> None:
    assert mistakes(serving, rendered(test_patterns.values(cell)), "privileged") == []


def test_a_field_that_kubernetes_does_not_know_would_be_seen(
    serving: ControlPlane, rendered: Render, preset: Preset
) -> None:
    made = rendered(preset("qwen3-0.6b-g6e"))
    one = next(one for one in made if one["kind"] == "Deployment")
    wrong = {**one, "spec": {**one["spec"], "replica": 2}}
    assert 'unknown field "spec.replica"' in "".join(mistakes(serving, [wrong], "privileged"))


@each_preset
def test_pods_keep_to_the_strictest_level_of_pod_security_that_their_devices_allow(
    serving: ControlPlane, rendered: Render, preset: Preset, name: str
) -> None:
    made = pods(rendered(preset(name)))
    pins = any("add" in one["spec"]["containers"][0]["securityContext"]["capabilities"] for one in made)
    root = any(one["spec"]["securityContext"]["runAsUser"] == 0 for one in made)
    kept = LEVELS.index("privileged" if pins else "baseline" if root else "restricted")
    assert mistakes(serving, made, LEVELS[kept]) == []
    if kept:
        said = mistakes(serving, made, LEVELS[kept - 1])
        assert said and all("violates PodSecurity" in line for line in said)


@pytest.fixture(scope="module")
def homeless(control_plane: ControlPlane, rendered: Render, preset: Preset) -> Iterator[dict[str, list[str]]]:
    """What the scheduler says against the pods of each preset and pattern, on as many machines as their accelerators fill."""
    wanted: dict[str, tuple[list[dict[str, Any]], Cell | None]] = {
        slug(name): (pods(rendered(preset(name)), slug(name)), None) for name in NAMES
    }
    for cell in test_patterns.CELLS:
        wanted[case(cell)] = (pods(rendered(test_patterns.values(cell)), case(cell)), cell)
    rooms = [one for name in wanted for one in namespace(name)]
    nodes = [one for name, (some, cell) in wanted.items() for one in machines_for(name, some, cell)]
    waiting = [pod for some, _ in wanted.values() for pod in some]
    control_plane.do("create", "--filename=-", told=[*rooms, *nodes, *waiting])

    def there() -> list[Object]:
        found: list[Object] = control_plane.read(
            "pods", "--all-namespaces", "--selector=app.kubernetes.io/name=inference"
        )
        return [one for one in found if one["metadata"]["namespace"] in wanted]

    def settled() -> bool:
        return all(one["spec"].get("nodeName") or unplaced(one) for one in there())

    processes.wait_until(settled, "the scheduler's word on each pod", limit_s=60, every_s=0.5)
    said: dict[str, list[str]] = {name: [] for name in wanted}
    for one in there():
        said[one["metadata"]["namespace"]] += [why] if (why := unplaced(one)) else []
    yield said
    # The namespaces stay to the session's end, with pods on machines that are gone.
    control_plane.do("delete", "--raw=/api/v1/nodes?labelSelector=case")


def slug(name: str) -> str:
    return name.replace(".", "-")


def case(cell: Cell) -> str:
    return f"{cell.pattern}-on-{cell.fleet}"


def unplaced(pod: Object) -> str:
    """Why a pod has no machine; empty where it has."""
    conditions = pod["status"].get("conditions", [])
    return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def machines_for(name: str, wanted: Sequence[Object], cell: Cell | None) -> list[dict[str, Any]]:
    """A machine without accelerators, and as many with them as the pods' accelerators fill."""
    engines = [one for one in wanted if one["spec"].get("affinity", {}).get("nodeAffinity")]
    terms = engines[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [expressions] = [term["matchExpressions"] for term in terms["nodeSelectorTerms"]]
    row = instances.load()[next(one["values"][0] for one in expressions if one["key"].endswith("instance-type"))]
    assert row.accelerators
    device = DEVICES[row.accelerators.kind]
    taken = sum(int(one["spec"]["containers"][0]["resources"]["limits"].get(device, 0)) for one in engines)
    count = math.ceil(taken / row.accelerators.count)
    if cell is None:
        made = machines.of_type(row, count, name, case=name)
    else:
        made = machines.of_pool(
            read(paths.EXAMPLE_FLEETS / f"{cell.fleet}.yaml").value, cell.pool, count, name, case=name
        )
    return [machines.plain(f"{name}-plain", case=name), *made]


@each_preset
def test_a_presets_pods_find_a_place_on_the_machines_that_their_accelerators_fill(
    homeless: dict[str, list[str]], name: str
) -> None:
    assert homeless[slug(name)] == []


@test_patterns.each_cell
def test_a_patterns_pods_find_a_place_on_the_machines_that_their_accelerators_fill(
    homeless: dict[str, list[str]], cell: Cell
) -> None:
    assert homeless[case(cell)] == []
